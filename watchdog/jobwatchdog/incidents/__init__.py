"""Findings that belong together: one cause, its symptoms, its suspects."""

from jobwatchdog.incidents.causal import CausalTable
from jobwatchdog.incidents.record import InvalidTransition
from jobwatchdog.incidents.tracker import Change, IncidentTracker

__all__ = ["CausalTable", "Change", "IncidentTracker", "InvalidTransition"]
