"""Loss spikes by a robust baseline: median and MAD of the last records, two of three, and not one bad batch.

What it sees
    A loss above `median + max(8 robust sigma, 3 %)` in two of three records, the same on the logarithm of the
    gradient norm. Both within five records confirm each other; one alone is said with less confidence. With fewer
    than 64 records only a leap of half the loss again counts.

Why it matters
    A spike that does not heal ruins every checkpoint after it. The gradient norm leads the loss by minutes.

Looks like it but is not
    A single bad batch; a gradient norm that clipping tames; warm-up, where the loss falls from ten; a new data mix
    or batch size, which is accepted as the new level after 64 records; the loss of reinforcement learning, which
    lives around zero.

By hand
    Plot loss and gradient norm on a logarithmic axis, 200 steps around the leap. Roll back at least 100 steps before
    it and skip the batches between, as PaLM's authors did.

Sources
    Published rules of llm-foundry, Lightning, InternEvo, OLMo-core and the loss curves of BLOOM, re-implemented and
    compared in `benchmarks/loss_spike.py`.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import BaseDetector, Thresholds
from jobwatchdog.detectors.loss_spike.track import Episode, News, Track
from jobwatchdog.model import Evidence, Finding, Job, JobId, Kind, RestartHelps, Signal, StepReport

_LOSS_AROUND_ZERO = frozenset({"verl", "trl"})
_NO_SERIES = frozenset({"overflow", "bar", "generic-epoch"})  # the last: running means that restart with each epoch
_TRACKS_MAX = 16
_NOISY_RECORDS_MAX = 16
_NOISY_RECORDS_MIN = 5
_NOISY_RATIO = 2.0
_NOISY_RISE = 1.5
_WARMUP_STEPS = 200  # before this, losses leap as they like


class LossSpikeDetector(BaseDetector):
    """One series a framework; a job whose lines come in two shapes is not judged by a mixture."""

    id = "loss_spike"
    listens = (StepReport,)

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._tracks: dict[str, Track] = {}
        self._attempt = 0
        self._ever = False

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take a step report that carries a loss or a gradient norm."""
        if not isinstance(signal, StepReport) or signal.framework in _NO_SERIES | _LOSS_AROUND_ZERO:
            return []
        if signal.loss is None and signal.grad_norm is None:
            return []
        track = self._tracks.get(signal.framework)
        if track is None:
            if len(self._tracks) >= _TRACKS_MAX:
                return []
            track = self._tracks[signal.framework] = Track(self.thresholds)
        news = track.add(signal, now_s)
        return [] if news is None else self._tell(track, news, signal)

    def job_changed(self, job: Job) -> None:
        """A new attempt repeats steps; its records start another series."""
        if job.attempt != self._attempt:
            self._attempt = job.attempt
            self._tracks.clear()

    def log_ended(self, now_s: float) -> list[Finding]:
        """A short excerpt whose loss swings by more than twice is judged as what it is: noisy beyond use."""
        if self._ever:
            return []
        for track in self._tracks.values():
            found = self._noisy(track)
            if found is not None:
                return [found]
        return []

    # ---- words --------------------------------------------------------------------------------------

    def _tell(self, track: Track, news: News, report: StepReport) -> list[Finding]:
        episode = track.episode
        if news is News.NEW_LEVEL or episode is None:
            return []
        if news is News.RECOVERED:
            track.episode = None
            return [self._recovered(episode, report)]
        self._ever = True
        return [self._finding(episode, report, news)]

    def _finding(self, episode: Episode, report: StepReport, news: News) -> Finding:
        ratio = episode.peak_loss / episode.baseline if episode.baseline > 0 else 0.0
        what = "loss and gradient norm" if episode.by_loss and episode.by_grad else "loss" if episode.by_loss else ""
        what = what or "gradient norm"
        levels = f"{episode.baseline:.4g} → {episode.peak_loss:.4g}"
        lasting = f", still not back at step {report.step}" if news is News.LASTS else ""
        return Finding(
            kind=Kind.LOSS_SPIKE,
            job=self.job,
            detector=self.id,
            confidence=_confidence(episode, ratio, news, has_grad=report.grad_norm is not None),
            restart_helps=RestartHelps.MAYBE,
            evidence=tuple(episode.evidence[-3:]),
            onset_step=episode.onset_step,
            onset_s=episode.onset_s,
            measures={
                "loss": episode.peak_loss,
                "baseline_loss": episode.baseline,
                "loss_ratio": ratio,
                "steps_since_onset": float(report.step - episode.onset_step),
            },
            summary=f"{what} leapt at step {episode.onset_step}: {levels}{lasting}",
        )

    def _recovered(self, episode: Episode, report: StepReport) -> Finding:
        text = f"back at its level since step {episode.last_outlier_step}, seen until step {report.step}"
        place = report.origin
        return Finding(
            kind=Kind.LOSS_SPIKE,
            job=self.job,
            detector=self.id,
            confidence=0.9,
            restart_helps=RestartHelps.NO,
            evidence=(Evidence(text=report.text, file=place.file, line=place.line, t_s=report.t_s),),
            onset_step=episode.onset_step,
            onset_s=episode.onset_s,
            measures={"steps_to_recover": float(episode.last_outlier_step - episode.onset_step + 1)},
            recovered=True,
            summary=text,
        )

    def _noisy(self, track: Track) -> Finding | None:
        losses = list(track.losses)
        if not _NOISY_RECORDS_MIN <= len(losses) <= _NOISY_RECORDS_MAX or losses[0][0] < _WARMUP_STEPS:
            return None
        values = [loss for _, loss in losses]
        low = min(range(len(values)), key=values.__getitem__)
        high = max(range(len(values)), key=values.__getitem__)
        leap = max(values[low:]) / values[low] if values[low] > 0 else 0.0
        if high < low or leap < _NOISY_RATIO or values[high] - values[low] < _NOISY_RISE:
            return None
        return Finding(
            kind=Kind.LOSS_SPIKE,
            job=self.job,
            detector=self.id,
            confidence=0.5,
            restart_helps=RestartHelps.MAYBE,
            evidence=(Evidence(text=f"loss {values[low]:.4g} at step {losses[low][0]}, then {values[high]:.4g}"),),
            onset_step=losses[low][0],
            measures={"loss": values[high], "baseline_loss": values[low], "loss_ratio": leap},
            summary=f"the loss swings between {values[low]:.4g} and {values[high]:.4g} within {len(values)} records",
        )


def _confidence(episode: Episode, ratio: float, news: News, *, has_grad: bool) -> float:
    """Both measures agree: sure. The gradient norm alone is a warning; the loss alone is as sure as it is high."""
    if episode.by_loss and episode.by_grad:
        return 0.95
    if not episode.by_loss:
        return 0.55
    if ratio >= 1.5 or news is News.LASTS:
        return 0.85
    return 0.65 if has_grad else 0.75


def build(job: JobId, thresholds: Thresholds) -> LossSpikeDetector:
    """Return the detector for one job."""
    return LossSpikeDetector(job, thresholds)
