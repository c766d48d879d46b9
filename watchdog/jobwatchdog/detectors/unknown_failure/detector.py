"""The job failed and nothing known explains it.

What it sees
------------
Exceptions and exit codes that say little, and the launcher's word that the job failed.

Why it matters
--------------
A person must look; it is better said than guessed.

Looks like it but is not
------------------------
Failures that another kind explains: this kind is then only its symptom.

By hand
-------
Read the end of the log of the first rank that failed.

Sources
-------
Exit codes of launchers.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.detectors.ignored import IgnoredTracebacks
from jobwatchdog.model import (
    Evidence,
    Finding,
    JobId,
    JobPhase,
    JobStateSeen,
    Kind,
    LogMatch,
    RestartHelps,
    Role,
    Signal,
)

# What shells, env and the dynamic loader say of a command that is not there, or not to be executed (POSIX, 2.8.2).
_NOT_RUN = frozenset({126, 127})


class UnknownFailureDetector(SignatureDetector):
    """The last word: the launcher says that the job failed, or a line that says little more."""

    kind = Kind.UNKNOWN_FAILURE
    id = "unknown_failure"
    listens = (JobStateSeen, LogMatch)

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._ignored = IgnoredTracebacks()

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take lines and the launcher's view."""
        if self._ignored.ends_with(signal):
            return []
        if not isinstance(signal, JobStateSeen):
            return super().observe(signal, now_s)
        if signal.state is not JobPhase.FAILED:
            return []
        how = f"signal {signal.exit_signal}" if signal.exit_signal else f"exit code {signal.exit_code}"
        text = f"attempt {signal.attempt} ended with {how}" + (f": {signal.detail}" if signal.detail else "")
        never_ran = signal.exit_code in _NOT_RUN
        return [
            Finding(
                kind=Kind.CONFIG_OR_CODE_BUG if never_ran else Kind.UNKNOWN_FAILURE,
                job=self.job,
                detector=self.id,
                role=Role.CAUSE if never_ran else Role.SYMPTOM,
                confidence=0.9,
                restart_helps=RestartHelps.NO if never_ran else None,
                evidence=(Evidence(text, t_s=signal.t_s if signal.t_s is not None else now_s),),
                onset_s=signal.t_s if signal.t_s is not None else now_s,
                confirmed=True,
                summary=text,
            )
        ]


def build(job: JobId, thresholds: Thresholds) -> UnknownFailureDetector:
    """Return the detector of one job."""
    return UnknownFailureDetector(job, thresholds)
