"""The one state machine that folds signals, detectors, incidents, policy and plans."""

from jobwatchdog.engine.engine import Engine
from jobwatchdog.engine.lifecycle import InvalidTransition, Stage
from jobwatchdog.engine.runtime import Limits

__all__ = ["Engine", "InvalidTransition", "Limits", "Stage"]
