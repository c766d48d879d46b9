"""How the job ended or went on: what turns alarms into noise.

What it sees
------------
Cancels by the user, clean ends, and steps that advance after an alarming line.

Why it matters
--------------
Tracebacks after Ctrl-C, teardown noise after the last step, and optional imports that fail are no incidents.

Looks like it but is not
------------------------
A cancel with a reason: time limit, preemption, node failure.

By hand
-------
sacct -j JOB -o state.

Sources
-------
Observed logs of healthy runs.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import BaseDetector, Thresholds, evidence_of
from jobwatchdog.model import (
    Finding,
    Job,
    JobId,
    JobPhase,
    JobStateSeen,
    Kind,
    LogMatch,
    Phase,
    PhaseChanged,
    Role,
    Signal,
    StepReport,
)

_SIGTERM = 15


class OutcomeDetector(BaseDetector):
    """Says `cancelled`, `ended`, `progress` or `running again`; the incidents draw the consequences."""

    id = "outcome"

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._attempt = 0
        self._forget()

    def _forget(self) -> None:
        self._alarmed = False
        self._alarm_at = 0.0
        self._alarm_file: str | None = None
        self._ended = False
        self._steps: set[int] = set()
        self._highest: int | None = None

    def job_changed(self, job: Job) -> None:
        """A new attempt starts from nothing."""
        if job.attempt != self._attempt:
            self._attempt = job.attempt
            self._forget()

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take lines, phases, steps and the launcher's view."""
        if isinstance(signal, StepReport):
            return self._step(signal, now_s)
        if isinstance(signal, LogMatch):
            return self._line(signal, now_s)
        if isinstance(signal, PhaseChanged):
            if signal.phase is Phase.SHUTDOWN and signal.begin:
                self._ended = True
                return [self._say("ended", signal)]
        elif isinstance(signal, JobStateSeen):
            if signal.state is JobPhase.CANCELLED:
                return [self._say("cancelled", signal)]
            if signal.state is JobPhase.SUCCEEDED:
                return [self._say("ended", signal)]
            if signal.state is JobPhase.FAILED and _asked_to_end(signal):
                return [self._say("cancelled", signal)]
        return []

    def _line(self, match: LogMatch, now_s: float) -> list[Finding]:
        if match.role is Role.BENIGN:
            said = "cancelled" if "cancelled" in match.tags else "ended"
            self._ended |= said == "ended"
            survived = [self._say("progress", match)] if match.fields.get("status") == "success" else []
            return [*survived, self._say(said, match)]
        if match.kind is not None:
            self._alarmed = True
            self._alarm_at, self._alarm_file = now_s, match.origin.file
            self._steps.clear()
        return []

    def _step(self, report: StepReport, now_s: float) -> list[Finding]:
        """Steps beyond those seen before show that the run lives; steps from the beginning, that it was started anew."""
        wanted = self.thresholds.get("progress_steps", 3.0)
        if not self._alarmed and not self._ended:
            self._highest = max(report.step, self._highest or 0)
            return []
        if self._alarmed and now_s <= self._alarm_at and report.origin.file != self._alarm_file:
            return []  # two files without times: which line came first is not known
        self._steps.add(report.step)
        if len(self._steps) < wanted:
            return []
        again = self._ended or (self._highest is not None and min(self._steps) <= self._highest)
        self._alarmed = self._ended = False
        self._highest = max(self._steps)
        self._steps.clear()
        return [self._say("running again" if again else "progress", report)]

    def _say(self, what: str, signal: Signal) -> Finding:
        return Finding(
            kind=Kind.UNKNOWN_FAILURE,
            job=self.job,
            detector=self.id,
            role=Role.BENIGN,
            evidence=(evidence_of(signal),) if isinstance(signal, LogMatch) else (),
            onset_s=signal.t_s,
            summary=what,
        )


def _asked_to_end(seen: JobStateSeen) -> bool:
    """The launcher's own process got SIGTERM, and not from us: somebody wants the job to end. Schedulers that send it
    say why in their log; that is a cause of its own."""
    return seen.exit_signal == _SIGTERM or seen.exit_code == 128 + _SIGTERM


def build(job: JobId, thresholds: Thresholds) -> OutcomeDetector:
    """Return the detector of one job."""
    return OutcomeDetector(job, thresholds)
