"""Counts of non-finite records in a row for one framework's lines."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jobwatchdog.model import StepReport

_NO_SCALER: Final = frozenset({"torchtitan", "nanotron", "olmo-core", "composer"})
_ALWAYS_A_LOSS: Final = frozenset({"megatron", "nemo", "nanotron"})


@dataclass(frozen=True, slots=True)
class Bad:
    """Why one record is bad, and how many in a row make a finding."""

    words: str
    records: int
    confidence: float


class Series:
    """One framework's records in a row."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._th = thresholds
        self._scale_seen = 0.0  # highest loss scale seen: above 1, fp16 with a scaler
        self._seen: deque[tuple[int, int | None]] = deque(maxlen=64)
        self.bad_in_a_row = 0
        self.good_in_a_row = 0
        self.onset: StepReport | None = None
        self.told = False

    def add(self, report: StepReport) -> Bad | None:
        """Takes one record; the reason when it completes a row that is long enough, once an episode."""
        key = (report.step, report.micro_step)
        if key in self._seen:
            return None
        self._seen.append(key)
        self._scale_seen = max(self._scale_seen, report.loss_scale or 0.0)
        bad = self._judge(report)
        if bad is None:
            self.bad_in_a_row = 0
            if report.loss is not None:
                self.good_in_a_row += 1
            return None
        self.good_in_a_row = 0
        if self.bad_in_a_row == 0:
            self.onset = report
        self.bad_in_a_row += 1
        if self.told or self.bad_in_a_row < bad.records:
            return None
        self.told = True
        return bad

    def recovered(self) -> bool:
        """Whether an episode that was told is over."""
        if not self.told or self.good_in_a_row < self._th["recover_records"]:
            return False
        self.told = False
        return True

    def _judge(self, report: StepReport) -> Bad | None:
        th = self._th
        scaled, skipped = self._scale_seen > 1.0, bool(report.skipped)
        loss, norm = report.loss, report.grad_norm
        norm_bad = norm is not None and not math.isfinite(norm)
        if report.nan_count:
            return Bad(f"{report.nan_count} NaN iterations in this record", 1, 0.95)
        if loss is not None and not math.isfinite(loss):
            records = th["scaled_records"] if scaled and skipped else th["loss_records"]
            return Bad(f"the loss is {loss}", int(records), 0.95)
        if report.loss_missing and report.framework in _ALWAYS_A_LOSS:
            return self._missing(skipped=skipped, norm_bad=norm_bad)
        if not norm_bad:
            return None
        if loss == 0.0 and norm is not None and math.isnan(norm):
            return Bad("the loss is 0 and the gradient norm nan", 1, 0.9)
        certain = report.framework in _NO_SCALER or (report.loss_scale == 1.0 and not scaled)
        return Bad(
            f"the gradient norm is {norm}", 1 if certain else int(th["grad_records"]) + int(norm == math.inf), 0.85
        )

    def _missing(self, *, skipped: bool, norm_bad: bool) -> Bad:
        words = "the loss field vanished while steps advance (this framework drops it when it is NaN)"
        if norm_bad and not skipped:
            return Bad(words, 1, 0.95)
        return Bad(words, int(self._th["skipped_missing_records"]) if skipped else 1, 0.85)


class Overflows:
    """fp16 overflows: each skips a step and halves the scale; a start-up settles, an exhausted scale does not."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._th = thresholds
        self.in_a_row = 0
        self.first: StepReport | None = None
        self._last_step = 0
        self.told = False

    def add(self, report: StepReport) -> Bad | None:
        """Takes one overflow line."""
        if self.in_a_row and report.step - self._last_step > 2:
            self.in_a_row = 0
        if self.in_a_row == 0:
            self.first = report
        self.in_a_row += 1
        self._last_step = report.step
        if self.told:
            return None
        th = self._th
        scale = report.loss_scale
        if scale is not None and scale <= th["scale_min"] and self.in_a_row >= th["falling_min"]:
            self.told = True
            return Bad(f"the loss scale is down to {scale:g} after {self.in_a_row} overflows in a row", 1, 0.9)
        if self.in_a_row >= th["overflows_in_a_row"]:
            self.told = True
            return Bad(f"{self.in_a_row} steps in a row were skipped for overflow", 1, 0.8)
        return None

    def step_done(self, report: StepReport) -> None:
        """A step that was not skipped ends the row."""
        if report.step > self._last_step and not report.skipped:
            self.in_a_row = 0
