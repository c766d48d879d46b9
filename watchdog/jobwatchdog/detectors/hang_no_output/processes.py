"""What the operating system shows of the ranks: who is stopped, who waits for a disk, who burns time, who idles."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jobwatchdog.model import Origin, ProcessSeen, ProcState

FRESH_S: Final = 5.0  # an older sighting is no evidence
_RATE_WINDOW_S: Final = 6.0  # processor time is judged over this much
_RATE_WINDOW_MIN_S: Final = 2.0
_IDLE_RATE: Final = 0.03  # seconds of processor time a second: pollers of a waiting library stay below
_BUSY_RATE: Final = 0.30
_SAMPLES_MAX: Final = 64


class Activity(StrEnum):
    """What a rank's processor time says."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    LIGHT = "light"
    BUSY = "busy"


@dataclass(slots=True)
class RankProcess:
    """The sightings of one rank's process."""

    origin: Origin
    state: ProcState = ProcState.RUNNING
    seen_s: float = 0.0
    since_s: float = 0.0  # first sighting of the present state
    cpu: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))

    def see(self, signal: ProcessSeen, now_s: float) -> None:
        """Takes one sighting."""
        if signal.state != self.state or self.seen_s == 0.0:
            self.state, self.since_s = signal.state, now_s
        self.seen_s = now_s
        if signal.cpu_s is None:
            return
        self.cpu.append((now_s, signal.cpu_s))
        while len(self.cpu) > 2 and self.cpu[1][0] <= now_s - _RATE_WINDOW_S:
            self.cpu.popleft()

    def activity(self) -> Activity:
        """Judged by the rate of processor time over the last seconds."""
        if len(self.cpu) < 2 or self.cpu[-1][0] - self.cpu[0][0] < _RATE_WINDOW_MIN_S:
            return Activity.UNKNOWN
        rate = (self.cpu[-1][1] - self.cpu[0][1]) / (self.cpu[-1][0] - self.cpu[0][0])
        if rate < _IDLE_RATE:
            return Activity.IDLE
        return Activity.BUSY if rate > _BUSY_RATE else Activity.LIGHT

    def idle_since_s(self) -> float | None:
        """Since when processor time has stood still, as far as the samples reach."""
        if not self.cpu:
            return None
        last = self.cpu[-1][1]
        since = self.cpu[-1][0]
        for t_s, cpu_s in reversed(self.cpu):
            if last - cpu_s > 0.05:
                break
            since = t_s
        return since


class Processes:
    """All ranks' processes of the present attempt, by rank where known, else by pid."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, int], RankProcess] = {}

    def see(self, signal: ProcessSeen, now_s: float) -> None:
        """Takes one sighting; a process of no rank (the launcher) tells nothing of the training."""
        key = _key(signal.origin)
        if key is None:
            return
        known = self._by_key.get(key)
        if known is None or known.origin.pid != signal.origin.pid:
            known = self._by_key[key] = RankProcess(signal.origin)
        known.see(signal, now_s)

    def alive(self, now_s: float) -> list[RankProcess]:
        """Ranks seen lately and not ended, in order; processes without a rank count only where no rank is known."""
        ranked = any(kind == "rank" for kind, _ in self._by_key)
        return [
            p
            for (kind, _), p in sorted(self._by_key.items())
            if now_s - p.seen_s <= FRESH_S
            and p.state not in (ProcState.GONE, ProcState.ZOMBIE)
            and (kind == "rank" or not ranked)
        ]

    def known(self) -> bool:
        """Whether any rank's process was ever seen in this attempt."""
        return bool(self._by_key)

    def any_ended(self) -> bool:
        """Whether a rank's process is gone: then this is a crash, and the others' silence its fallout."""
        ranked = any(kind == "rank" for kind, _ in self._by_key)
        ended = (ProcState.GONE, ProcState.ZOMBIE)
        return any(p.state in ended for (kind, _), p in self._by_key.items() if kind == "rank" or not ranked)

    def clear(self) -> None:
        """A new attempt has new processes."""
        self._by_key.clear()


def _key(origin: Origin) -> tuple[str, int] | None:
    if origin.rank is not None:
        return ("rank", origin.rank)
    return None if origin.pid is None else ("pid", origin.pid)
