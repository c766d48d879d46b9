"""Findings that belong together: one cause, its symptoms, its suspects."""

from jobwatchdog.incidents.causal import CausalTable
from jobwatchdog.incidents.tracker import Change, IncidentTracker, InvalidTransition

__all__ = ["CausalTable", "Change", "IncidentTracker", "InvalidTransition"]
