"""The series of one framework's records: loss and gradient norm side by side, and the episode they are in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from jobwatchdog.detectors.loss_spike.window import Margins, Reading, RobustWindow
from jobwatchdog.detectors.moments import seen_at
from jobwatchdog.model import Evidence, StepReport

_KEYS_MAX = 512
_LASTING_RECORDS = 5  # a few stray outliers long after a spike do not make it last
_RANK_LAG_STEPS = 8  # ranks that print the same steps are at most this far apart


class News(StrEnum):
    """What a record changed."""

    BEGAN = "began"
    CONFIRMED = "confirmed"  # the other measure says the same now
    LASTS = "lasts"  # still there after `unrecovered_steps`
    RECOVERED = "recovered"
    NEW_LEVEL = "new level"


@dataclass(slots=True)
class Episode:
    """One spike, from its first outlier on."""

    onset_step: int
    onset_s: float | None
    by_loss: bool = False
    by_grad: bool = False
    peak_loss: float = 0.0
    baseline: float = 0.0
    last_outlier_step: int = 0
    calm: int = 0  # records in a row that were back
    records: int = 0  # records that were not
    lasting_told: bool = False
    evidence: list[Evidence] = field(default_factory=list)


@dataclass(slots=True)
class Outlier:
    """One record above the limit, kept until it is confirmed or forgotten."""

    index: int
    step: int
    t_s: float | None
    evidence: Evidence


class Track:
    """Records in order of steps. A step seen before is the same record from another rank."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._th = thresholds
        self.episode: Episode | None = None
        self.last_step: int | None = None
        self.losses: deque[tuple[int, float]] = deque(maxlen=64)
        self._seen: deque[tuple[int, int | None]] = deque(maxlen=_KEYS_MAX)
        self._seen_set: set[tuple[int, int | None]] = set()
        self._index = 0
        self._start_over()

    def _start_over(self) -> None:
        th = self._th
        size, start, regime = int(th["window"]), int(th["window_start"]), int(th["regime_after"])
        confirm = int(th["confirm"])
        self._loss = RobustWindow(
            size, start, regime,
            Margins(th["k"], th["floor"], 0.02, confirm, th["alone"]),
            Margins(th["short_k"], th["short_share"], th["short_min"], confirm),
        )  # fmt: skip
        self._grad = RobustWindow(
            size, start, regime,
            Margins(th["k"], 0.0, th["floor_log_grad"], confirm, th["alone"]),
            Margins(th["short_k"], 0.0, math.log(10.0), confirm),
        )  # fmt: skip
        self._loss_outliers: deque[Outlier] = deque(maxlen=3)
        self._grad_outliers: deque[Outlier] = deque(maxlen=3)
        self.episode = None
        self.losses.clear()

    # ---- one record ---------------------------------------------------------------------------------

    def add(self, report: StepReport, now_s: float) -> News | None:
        """Takes one record with a loss or a gradient norm."""
        if not self._fresh(report):
            return None
        self._index += 1
        loss = self._read(self._loss, report.loss, self._loss_outliers, report, now_s)
        log_norm = math.log(report.grad_norm) if report.grad_norm is not None and report.grad_norm > 0 else None
        grad = self._read(self._grad, log_norm, self._grad_outliers, report, now_s)
        if report.loss is not None and math.isfinite(report.loss):
            self.losses.append((report.step, report.loss))
        return self._fold(report, loss, grad, now_s)

    def _fresh(self, report: StepReport) -> bool:
        """Whether this record is new: another rank's copy is not, a step far behind the newest begins a new series."""
        key = (report.step, report.micro_step)
        if self.last_step is not None and report.step < self.last_step - _RANK_LAG_STEPS:
            self._start_over()  # a resume, or a new epoch's count
            self._seen.clear()
            self._seen_set.clear()
            self.last_step = None
        elif key in self._seen_set:
            return False
        self.last_step = report.step if self.last_step is None else max(self.last_step, report.step)
        if len(self._seen) == _KEYS_MAX:
            self._seen_set.discard(self._seen[0])
        self._seen.append(key)
        self._seen_set.add(key)
        return True

    def _read(
        self, window: RobustWindow, value: float | None, outliers: deque[Outlier], report: StepReport, now_s: float
    ) -> Reading | None:
        if value is None or not math.isfinite(value):
            return None
        reading = window.add(value)
        if reading.outlier:
            t_s = seen_at(report.t_s, now_s)
            place = report.origin
            evidence = Evidence(text=report.text, file=place.file, line=place.line, t_s=report.t_s)
            outliers.append(Outlier(self._index, report.step, t_s, evidence))
        return reading

    # ---- the episode --------------------------------------------------------------------------------

    def _fold(self, report: StepReport, loss: Reading | None, grad: Reading | None, now_s: float) -> News | None:
        by_loss = loss is not None and loss.spike
        by_grad = grad is not None and grad.spike and len(self._grad) >= self._th["window_start"]
        if self.episode is None:
            return self._maybe_begin(report, loss, grad, by_loss=by_loss, by_grad=by_grad)
        return self._go_on(self.episode, report, loss, grad, by_loss=by_loss, by_grad=by_grad)

    def _maybe_begin(
        self, report: StepReport, loss: Reading | None, grad: Reading | None, *, by_loss: bool, by_grad: bool
    ) -> News | None:
        if not (by_loss or by_grad):
            return None
        joined = self._grad_outliers if by_loss else self._loss_outliers
        near = [o for o in joined if self._index - o.index < self._th["join_steps"] + 3]
        strong = (loss is not None and loss.strong) or (by_grad and grad is not None and grad.strong)
        if not near and not strong:
            return None
        own = [o for o in (self._loss_outliers if by_loss else self._grad_outliers) if self._index - o.index < 3]
        first = min([*own, *near], key=lambda o: o.index)
        self.episode = Episode(
            first.step, first.t_s, by_loss=by_loss or bool(near), by_grad=by_grad or (by_loss and bool(near)),
            peak_loss=max((loss for step, loss in self.losses if step >= first.step), default=0.0), baseline=self._loss.median() if len(self._loss) else 0.0,
            last_outlier_step=report.step, evidence=[o.evidence for o in own],
        )  # fmt: skip
        if loss is not None and loss.regime:
            self.episode = None
            return None
        return News.BEGAN

    def _go_on(
        self, episode: Episode, report: StepReport, loss: Reading | None, grad: Reading | None, *, by_loss: bool,
        by_grad: bool,
    ) -> News | None:  # fmt: skip
        episode.peak_loss = max(episode.peak_loss, report.loss or 0.0)
        if (loss is not None and loss.regime) or (grad is not None and grad.regime and not episode.by_loss):
            self.episode = None
            return News.NEW_LEVEL
        calm = (loss is None or loss.healed) and (grad is None or not grad.outlier)
        if not calm:
            episode.calm = 0
            episode.last_outlier_step = report.step
            episode.records += 1
        else:
            episode.calm += 1
        if episode.calm >= 2 and self._recovered(episode, report.step):
            return News.RECOVERED
        if (by_loss and not episode.by_loss) or (by_grad and not episode.by_grad and episode.by_loss):
            episode.by_loss, episode.by_grad = episode.by_loss or by_loss, episode.by_grad or by_grad
            return News.CONFIRMED
        lasts = report.step - episode.onset_step >= self._th["unrecovered_steps"]
        if lasts and not episode.lasting_told and episode.calm == 0 and episode.records >= _LASTING_RECORDS:
            episode.lasting_told = True
            return News.LASTS
        return None

    def _recovered(self, episode: Episode, step: int) -> bool:
        return step - episode.last_outlier_step >= self._th["recover_steps"]
