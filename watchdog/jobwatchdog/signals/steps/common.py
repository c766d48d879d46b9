"""What the parsers of step lines share: the state of one stream, numbers as frameworks print them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from jobwatchdog.model import Signal, StepReport

TEXT_MAX: Final = 300  # characters of a line kept as evidence

NUMBER: Final = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|NAN|inf|Inf|INF|Infinity)"
"""A number as any framework prints it, for use inside larger patterns."""

_SUFFIX: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_LEADING_NUMBER: Final = re.compile(NUMBER)


@dataclass(slots=True)
class StepState:
    """What one stream has shown so far; half records of formats with several lines wait here."""

    loss_seen: set[str] = field(default_factory=set)  # frameworks whose lines carried a loss
    last_step: int | None = None
    bar_step: int | None = None  # of the progress bar seen last
    bar_total: int | None = None
    trainer_total: int | None = None  # total of the bar that belongs to the HF Trainer
    dict_count: int = 0
    overflow_count: int = 0
    skipped_total: int | None = None
    step_seconds: dict[str, float] = field(default_factory=dict)
    record: StepReport | None = None  # of a format with several lines, not yet given out
    record_left: int = 0  # lines after which an unfinished record is given up
    gpu: GpuBlock | None = None
    csv_columns: tuple[str, ...] = ()
    in_eval: bool = False


@dataclass(slots=True)
class GpuBlock:
    """One GPU's part of an `nvidia-smi -q` report, as far as read."""

    gpu: str = ""
    reasons: int | None = None
    in_max: bool = False
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    temp_c: float | None = None
    temp_margin_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


class Parse(Protocol):
    """One family's parser: a cleaned line in, signals without origin out; [] when the line is none of its own."""

    def __call__(self, line: str, state: StepState) -> list[Signal]: ...


def number(text: str | None) -> float | None:
    """`text` as a float: thousands commas, quotes, nan and inf are fine; None when it is no number."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(text.strip(" '\"").replace(",", ""))
    except ValueError:
        return None


def leading_number(text: str) -> float | None:
    """The number at the start of `text`, whatever unit follows."""
    found = _LEADING_NUMBER.match(text.strip())
    return number(found.group()) if found else None


def suffixed(text: str) -> float | None:
    """A number with K, M, B, G or T behind it: `1.84K` is 1840."""
    text = text.strip()
    scale = _SUFFIX.get(text[-1:])
    value = number(text[:-1] if scale else text)
    return value * scale if value is not None and scale else value


def whole(text: str | None) -> int | None:
    """`text` as an integer, None when it is none; `3.2e+4` is rounded by its printer and so is none either."""
    if text is None:
        return None
    try:
        return int(text.replace(",", ""))
    except ValueError:
        return None


def with_loss_memory(report: StepReport, state: StepState) -> StepReport:
    """Marks the loss as missing where this framework's lines had one before; remembers the step."""
    state.last_step = report.step
    if report.loss is not None:
        state.loss_seen.add(report.framework)
        return report
    if report.framework not in state.loss_seen:
        return report
    return replace(report, loss_missing=True)
