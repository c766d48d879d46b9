"""How long silence is normal for this job: learned from the arrival of its own steps and phases."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Final

WINDOW: Final = 256
_SAME_BURST_S: Final = 0.002  # a block-buffered writer hands over many lines at once: not a gap
_GAPS_SKIPPED: Final = 1  # the first gap after a start holds compilation and warm-up


class Gaps:
    """The last gaps between arrivals of new steps, sorted on the side for the p99."""

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._to_skip = _GAPS_SKIPPED

    def __len__(self) -> int:
        return len(self._order)

    def add(self, gap_s: float) -> None:
        """Takes one gap; arrivals of one burst are none."""
        if gap_s < _SAME_BURST_S:
            return
        if self._to_skip:
            self._to_skip -= 1
            return
        self._order.append(gap_s)
        insort(self._sorted, gap_s)
        if len(self._order) > WINDOW:
            self._sorted.pop(bisect_left(self._sorted, self._order.popleft()))

    def start_over(self) -> None:
        """A new attempt: keep what is known of the pace, skip its warm-up."""
        self._to_skip = _GAPS_SKIPPED

    def p99_s(self) -> float:
        """The gap that 1 of 100 exceeds; the largest while there are fewer than 100."""
        n = len(self._sorted)
        return self._sorted[min(n - 1, int(0.99 * n))] if n else 0.0


class Longest:
    """How long a phase took at most, and how often it was seen."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0

    def add(self, duration_s: float) -> None:
        """Takes one finished phase."""
        self.count += 1
        self.longest_s = max(self.longest_s, duration_s)
