"""Finds a job's checkpoints, says which are whole, and picks the last good one; never runs code of a checkpoint."""

from jobwatchdog.actuators.checkpoints.choose import Choice, last_good, list_checkpoints
from jobwatchdog.actuators.checkpoints.info import CheckpointInfo

__all__ = ["CheckpointInfo", "Choice", "last_good", "list_checkpoints"]
