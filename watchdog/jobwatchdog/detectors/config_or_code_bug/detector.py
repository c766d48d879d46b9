"""The program or its configuration is wrong: the same start fails the same way.

What it sees
------------
Uncaught Python exceptions of the classes that repeat, shape mismatches, refused command lines, missing programs.

Why it matters
--------------
Restarting it burns the same GPU hours again.

Looks like it but is not
------------------------
Tracebacks of optional imports that the run survives; exceptions of peers of a dead rank; what Python says it ignores in
destructors and exit handlers.

By hand
-------
Read the last traceback of the first rank that failed.

Sources
-------
Python exception hierarchy.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.detectors.ignored import IgnoredTracebacks
from jobwatchdog.model import Finding, JobId, Kind, LogMatch, Signal


class ConfigOrCodeBugDetector(SignatureDetector):
    """Exceptions, without those that Python ignores."""

    kind = Kind.CONFIG_OR_CODE_BUG
    id = "config_or_code_bug"
    listens = (LogMatch,)

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._ignored = IgnoredTracebacks()

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take lines."""
        return [] if self._ignored.ends_with(signal) else super().observe(signal, now_s)


def build(job: JobId, thresholds: Thresholds) -> ConfigOrCodeBugDetector:
    """Return the detector of one job."""
    return ConfigOrCodeBugDetector(job, thresholds)
