"""A GPU ran out of memory within a few steps after a checkpoint was saved or loaded.

What it sees
------------
An allocation failure within `steps_after_max` steps or `seconds_after_max` of the end of a checkpoint or of a resume.

Why it matters
--------------
Saving and loading leave the allocator fragmented or hold a second copy; the remedy is another one than for a plain failure.

Looks like it but is not
------------------------
A plain allocation failure at a steady shape.

By hand
-------
Look for the last "saving checkpoint" or "resuming from" before the failure.

Sources
-------
PyTorch notes on fragmentation; reports of failures right after restore.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import BaseDetector, Thresholds, evidence_of
from jobwatchdog.model import (
    Finding,
    Job,
    JobId,
    Kind,
    LogMatch,
    Phase,
    PhaseChanged,
    RestartHelps,
    Role,
    Signal,
    StepReport,
    Suspects,
)


class OomAfterCheckpointDetector(BaseDetector):
    """Remembers the last checkpoint and the steps since."""

    id = "oom_after_checkpoint"

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._attempt = 0
        self._forget()

    def _forget(self) -> None:
        self._saved_s: float | None = None
        self._armed = False
        self._resumed = False
        self._steps_since = 0
        self._last_step: int | None = None
        self._failed: tuple[LogMatch, float] | None = None  # the last failure that no checkpoint preceded, its arrival

    def job_changed(self, job: Job) -> None:
        """A new attempt starts from nothing."""
        if job.attempt != self._attempt:
            self._attempt = job.attempt
            self._forget()

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take checkpoints, steps and failures."""
        if isinstance(signal, PhaseChanged):
            return self._phase(signal, now_s)
        if isinstance(signal, StepReport):
            self._step(signal)
        elif isinstance(signal, LogMatch):
            if signal.signature == "resume-from-checkpoint":
                self._armed, self._resumed, self._steps_since = True, True, 0
                self._saved_s = signal.t_s
            elif signal.kind is Kind.CUDA_OOM:
                if self._near(signal):
                    return [self._finding(signal)]
                self._failed = (signal, now_s)
        return []

    def _phase(self, signal: PhaseChanged, now_s: float) -> list[Finding]:
        """A checkpoint. One rank saves while another, in the next step already, fails: in two files either line may
        be read first."""
        if signal.phase is not Phase.CHECKPOINT:
            return []
        self._armed, self._resumed, self._steps_since = True, False, 0
        self._saved_s = signal.t_s
        if self._failed is None:
            return []
        match, at_s = self._failed
        self._failed = None
        apart_s = signal.t_s - match.t_s if signal.t_s is not None and match.t_s is not None else now_s - at_s
        together = abs(apart_s) <= self.thresholds.get("together_s", 1.0) and now_s > 0
        return [self._finding(match)] if together and match.origin.file != signal.origin.file else []

    def _step(self, signal: StepReport) -> None:
        if signal.step != self._last_step:
            self._last_step = signal.step
            self._steps_since += 1

    def _near(self, match: LogMatch) -> bool:
        if not self._armed or self._steps_since > self.thresholds.get("steps_after_max", 3.0):
            return False
        if match.t_s is None or self._saved_s is None or self._steps_since:
            return True
        return match.t_s - self._saved_s <= self.thresholds.get("seconds_after_max", 120.0)

    def _finding(self, match: LogMatch) -> Finding:
        rank, gpu = match.origin.rank, match.fields.get("gpu")
        return Finding(
            kind=Kind.OOM_AFTER_CHECKPOINT,
            job=self.job,
            detector=self.id,
            role=Role.CAUSE,
            confidence=0.9,
            restart_helps=RestartHelps.NO if self._resumed else RestartHelps.MAYBE,
            suspects=Suspects(ranks=() if rank is None else (rank,), gpus=(gpu,) if gpu else ()),
            evidence=(evidence_of(match),),
            onset_s=match.t_s,
            onset_step=self._last_step,
            measures={"steps_after": float(self._steps_since)},
            summary="out of GPU memory right after a checkpoint was " + ("loaded" if self._resumed else "saved"),
        )


def build(job: JobId, thresholds: Thresholds) -> OomAfterCheckpointDetector:
    """Return the detector of one job."""
    return OomAfterCheckpointDetector(job, thresholds)
