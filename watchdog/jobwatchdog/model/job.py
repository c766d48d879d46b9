"""A job under watch: its identity and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobwatchdog.model.signal import JobId


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank of an attempt, as far as known."""

    rank: int
    local_rank: int | None = None
    node: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Identity = launcher's id + start time + attempt, never an id alone (schedulers reuse ids)."""

    id: JobId
    launcher: str  # "local", "pid", "log", "slurm", "ray"
    target: str = ""  # as the user wrote it: "pid:123", "log:/x", a command line
    name: str = ""
    user: str = ""
    attempt: int = 0  # 0 = the first start; rises with every restart
    started_s: float | None = None
    world_size: int | None = None
    ranks: tuple[RankInfo, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    can_restart: bool = False  # log:… targets can only be watched
