"""A robust baseline of a series: median and MAD of the records that were no outliers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

MAD_TO_SIGMA: Final = 1.4826
_NOISE_SIGMAS: Final = 4.0


class Reading(NamedTuple):  # a dataclass costs three times as much to make, at every step
    """What one value is against the baseline before it. `ready`: there is a baseline."""

    ready: bool
    outlier: bool = False
    spike: bool = False  # confirmed by its neighbours
    strong: bool = False  # by a margin that needs no other measure to agree
    healed: bool = False  # within twice the floor
    regime: bool = False  # the level was accepted as the new one just now
    median: float = 0.0


NOT_READY: Final = Reading(ready=False)


@dataclass(frozen=True, slots=True)
class Margins:
    """How far above the median a value must lie. `floor` is a share of the median, `floor_abs` an amount."""

    k: float
    floor: float
    floor_abs: float
    confirm: int
    alone: float = 1.0  # times the limit, where no other measure agrees
    of: int = 3


class RobustWindow:
    """Values so far, without outliers; a level that many outliers in a row agree on becomes the new baseline."""

    def __init__(self, size: int, start: int, regime_after: int, margins: Margins, short: Margins | None) -> None:
        self._size, self._start, self._regime_after = size, start, regime_after
        self._margins, self._short = margins, short
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._recent: deque[float] = deque(maxlen=margins.of)  # times the limit, 0 for no outlier
        self._outliers: list[float] = []

    def __len__(self) -> int:
        return len(self._order)

    def median(self) -> float:
        """Median of the baseline."""
        return _middle(self._sorted)

    def add(self, value: float) -> Reading:
        """Judges `value` against the baseline before it, then lets it in if it is no outlier."""
        margins = self._margins if len(self._order) >= self._start else self._short
        if margins is None or len(self._order) < 2:
            self._let_in(value)
            return NOT_READY
        median = _middle(self._sorted)
        floor = max(margins.floor * abs(median), margins.floor_abs)
        above = value - median
        excess = self._excess(above, floor, margins)
        self._recent.append(excess)
        if excess == 0 and above <= floor:
            self._store(value, False)
            return Reading(ready=True, healed=True, median=median)
        regime = self._store(value, excess > 0)
        confirm, of = self._confirmation(margins)
        recent = list(self._recent)[-of:]
        return Reading(
            ready=True,
            outlier=excess > 0,
            spike=excess > 0 and sum(e > 0 for e in recent) >= confirm,
            strong=excess > 0 and sum(e >= margins.alone for e in recent) >= confirm,
            healed=excess == 0 and self._back(above, floor),
            regime=regime,
            median=median,
        )

    def _excess(self, above: float, floor: float, margins: Margins) -> float:
        """How many times the limit the value lies above the median, 0 within it; the spread is found only if needed."""
        if above <= floor:
            return 0.0
        limit = max(margins.k * MAD_TO_SIGMA * self._mad(), floor)
        return above / limit if above > limit else 0.0

    def _back(self, above: float, floor: float) -> bool:
        """Within twice the floor, or within the noise that this series has anyway."""
        return above <= 2 * floor or above <= _NOISE_SIGMAS * MAD_TO_SIGMA * self._mad()

    def _confirmation(self, margins: Margins) -> tuple[int, int]:
        """A baseline of fewer than five records must be contradicted three times in a row."""
        return (margins.confirm, margins.of) if len(self._order) >= 5 else (3, 3)

    def _store(self, value: float, outlier: bool) -> bool:
        if not outlier:
            self._outliers.clear()
            self._let_in(value)
            return False
        self._outliers.append(value)
        if len(self._outliers) < self._regime_after:
            return False
        self._order.clear()
        self._sorted.clear()
        for old in self._outliers:
            self._let_in(old)
        self._outliers.clear()
        self._recent.clear()
        return True

    def _let_in(self, value: float) -> None:
        self._order.append(value)
        insort(self._sorted, value)
        if len(self._order) > self._size:
            self._sorted.pop(bisect_left(self._sorted, self._order.popleft()))

    def _mad(self) -> float:
        median = _middle(self._sorted)
        return _middle(sorted([abs(value - median) for value in self._sorted]))


def _middle(ordered: list[float]) -> float:
    n = len(ordered)
    half = n // 2
    return ordered[half] if n % 2 else 0.5 * (ordered[half - 1] + ordered[half])
