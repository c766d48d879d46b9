"""The one state machine that folds signals, detectors, incidents, policy and plans."""

from jobwatchdog.engine.engine import Engine
from jobwatchdog.engine.lifecycle import Stage
from jobwatchdog.engine.runtime import Limits
from jobwatchdog.incidents import InvalidTransition

__all__ = ["Engine", "InvalidTransition", "Limits", "Stage"]
