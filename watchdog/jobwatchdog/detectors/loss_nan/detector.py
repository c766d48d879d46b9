"""Losses and gradient norms that are no numbers, also where a framework hides it.

What it sees
    `nan` or `inf` as loss or gradient norm; a loss field that vanished while steps advance (Megatron drops it when
    it is NaN); NaN iterations counted by the framework; loss scaling at its minimum, or too many overflows in a row;
    assertions and checks of frameworks.

Why it matters
    Once a weight is NaN every later step is wasted, and every later checkpoint is NaN too. Launchers see a healthy
    job: it steps, and it ends with exit code 0.

Looks like it but is not
    The first overflows of fp16 training, while the loss scale settles; one skipped step; a progress bar or an
    evaluation without a loss.

By hand
    Load the last checkpoint and look for non-finite weights; run one step with anomaly detection; check the batch
    at the first bad step.

Sources
    Format strings of the frameworks; the HF Trainer replaces NaN losses by a mean unless told otherwise, so its
    gradient norm is watched too.
"""

from __future__ import annotations

from dataclasses import replace

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.detectors.loss_nan.series import Bad, Overflows, Series
from jobwatchdog.detectors.moments import seen_at
from jobwatchdog.model import (
    NOBODY,
    Evidence,
    Finding,
    Job,
    JobId,
    Kind,
    LogMatch,
    RestartHelps,
    Role,
    Signal,
    StepReport,
    Suspects,
)

_SERIES_MAX = 16


class LossNanDetector(SignatureDetector):
    """Step reports by framework, and the lines that say it in words."""

    id = "loss_nan"
    listens = (StepReport, LogMatch)
    kind = Kind.LOSS_NAN

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._attempt = 0
        self._start_over()

    def _start_over(self) -> None:
        self._series: dict[str, Series] = {}
        self._overflows = Overflows(self.thresholds)
        self._last_step: int | None = None

    def job_changed(self, job: Job) -> None:
        """A new attempt has new weights."""
        if job.attempt != self._attempt:
            self._attempt = job.attempt
            self._start_over()

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take a step report or a matched line."""
        if isinstance(signal, StepReport):
            return self._step(signal, now_s)
        return super().observe(signal, now_s)

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """Return the line's finding, with the step that it names or the last one seen."""
        finding = self.finding(match)
        step = match.fields.get("step")
        onset = int(step) if step else self._last_step
        return [replace(finding, onset_step=onset, onset_s=seen_at(match.t_s, now_s))]

    def _step(self, report: StepReport, now_s: float) -> list[Finding]:
        if report.framework == "overflow":
            bad = self._overflows.add(report)
            return [] if bad is None else [self._say(bad, report, self._overflows.first or report, now_s)]
        self._last_step = report.step
        self._overflows.step_done(report)
        if report.framework == "bar":
            return []
        series = self._series.get(report.framework)
        if series is None:
            if len(self._series) >= _SERIES_MAX:
                return []
            series = self._series[report.framework] = Series(self.thresholds)
        bad = series.add(report)
        if bad is not None:
            return [self._say(bad, report, series.onset or report, now_s)]
        return [self._recovered(report)] if series.recovered() else []

    def _say(self, bad: Bad, report: StepReport, onset: StepReport, now_s: float) -> Finding:
        place = report.origin
        return Finding(
            kind=Kind.LOSS_NAN,
            job=self.job,
            detector=self.id,
            confidence=bad.confidence,
            evidence=(Evidence(text=report.text or bad.words, file=place.file, line=place.line, t_s=report.t_s),),
            onset_step=onset.step,
            onset_s=seen_at(onset.t_s, now_s),
            summary=f"{bad.words} at step {report.step}",
        )

    def _recovered(self, report: StepReport) -> Finding:
        return Finding(
            kind=Kind.LOSS_NAN, job=self.job, detector=self.id, recovered=True, restart_helps=RestartHelps.NO,
            summary=f"finite again, seen until step {report.step}",
        )  # fmt: skip

    def finding(self, match: LogMatch, suspects: Suspects | None = None, role: Role | None = None) -> Finding:
        """Build the finding; a rank that printed a NaN is not thereby broken hardware, unless its line says so."""
        named = suspects if suspects is not None else None if "rerun" in match.tags else NOBODY
        return super().finding(match, named, role)


def build(job: JobId, thresholds: Thresholds) -> LossNanDetector:
    """Return the detector for one job."""
    return LossNanDetector(job, thresholds)
