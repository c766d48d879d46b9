"""How long the present silence may last, given what the processes show; and who is to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobwatchdog.detectors.hang_no_output.processes import Activity, RankProcess
from jobwatchdog.model import NOBODY, ProcState, Suspects


@dataclass(frozen=True, slots=True)
class Verdict:
    """Allowed silence and what may be said once it is over. `words` is evidence beside the silence itself."""

    deadline_s: float
    confidence: float
    suspects: Suspects = NOBODY
    words: str = ""


def in_training(
    alive: Sequence[RankProcess], p99_s: float, now_s: float, th: Mapping[str, float], *, learned: bool, seen: bool
) -> Verdict:
    """Deadline while training goes on. `seen`: processes have been seen in this attempt."""
    stopped = stopped_ranks(alive, now_s, th, p99_s)
    if stopped is not None:
        return stopped
    if not learned:
        return Verdict(th["unlearned_s"], 0.75, words=_described(alive))
    if not alive:
        floor_s, factor = (th["busy_floor_s"], th["busy_factor"]) if seen else (th["log_only_floor_s"], th["factor"])
        return Verdict(max(floor_s, factor * p99_s), 0.6, words="the ranks' processes are not seen")
    return _by_activity(alive, p99_s, th)


def stopped_ranks(alive: Sequence[RankProcess], now_s: float, th: Mapping[str, float], p99_s: float) -> Verdict | None:
    """A rank in state T holds up all others; all of them in T is somebody's deliberate pause."""
    stopped = [p for p in alive if p.state == ProcState.STOPPED]
    if not stopped:
        return None
    if len(stopped) == len(alive) > 1:
        return Verdict(max(th["busy_floor_s"], th["busy_factor"] * p99_s), 0.6, words="all ranks are stopped (state T)")
    if all(now_s - p.since_s < th["stopped_s"] / 2 for p in stopped):
        return None
    return Verdict(max(th["stopped_s"], 2 * p99_s), 0.95, suspects_of(stopped), _named(stopped, "stopped (state T)"))


def _by_activity(alive: Sequence[RankProcess], p99_s: float, th: Mapping[str, float]) -> Verdict:
    idle_s = max(th["idle_floor_s"], 2 * th["factor"] * p99_s)
    busy_s = max(th["busy_floor_s"], th["busy_factor"] * p99_s)
    stuck = [p for p in alive if p.state == ProcState.DISK_SLEEP]
    if stuck and len(stuck) < len(alive):
        return Verdict(idle_s, 0.85, suspects_of(stuck), _named(stuck, "waiting for a disk (state D)"))
    idle = [p for p in alive if p.activity() == Activity.IDLE]
    busy = [p for p in alive if p.activity() == Activity.BUSY]
    if len(idle) == len(alive):
        return Verdict(idle_s, 0.8, words="no rank uses any processor time")
    if len(alive) > 1 and len(idle) == 1 and len(busy) == len(alive) - 1:
        return Verdict(idle_s, 0.85, suspects_of(idle), _named(idle, "idle while all others are busy"))
    if len(alive) > 1 and len(busy) == 1 and len(idle) == len(alive) - 1:
        return Verdict(busy_s, 0.75, suspects_of(busy), _named(busy, "busy alone while all others wait"))
    return Verdict(busy_s, 0.7, words=_described(alive))


def suspects_of(ranks: Sequence[RankProcess]) -> Suspects:
    """The ranks, their processes and their nodes."""
    return Suspects(
        nodes=tuple(sorted({p.origin.node for p in ranks if p.origin.node is not None})),
        ranks=tuple(sorted({p.origin.rank for p in ranks if p.origin.rank is not None})),
        pids=tuple(sorted({p.origin.pid for p in ranks if p.origin.pid is not None})),
    )


def _named(ranks: Sequence[RankProcess], what: str) -> str:
    names = [
        (f"rank {p.origin.rank}" if p.origin.rank is not None else "a process")
        + (f" (pid {p.origin.pid})" if p.origin.pid is not None else "")
        for p in ranks
    ]
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"


def _described(alive: Sequence[RankProcess]) -> str:
    if not alive:
        return ""
    parts = [f"rank {p.origin.rank}: {p.state}, {p.activity()}" for p in alive[:8]]
    return "; ".join(parts)
