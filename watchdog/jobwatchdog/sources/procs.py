"""Rank processes of a running job: who they are, in which state, and where they write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobwatchdog.linux import proctable
from jobwatchdog.model import JobId, Origin, ProcessSeen, ProcState

_PROC: Final = Path("/proc")
_STATES: Final[Mapping[str, ProcState]] = {
    "R": ProcState.RUNNING,
    "S": ProcState.SLEEPING,
    "I": ProcState.SLEEPING,
    "D": ProcState.DISK_SLEEP,
    "T": ProcState.STOPPED,
    "t": ProcState.STOPPED,
    "Z": ProcState.ZOMBIE,
    "X": ProcState.GONE,
}
_RANK: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_LOCAL: Final = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOG_SUFFIXES: Final = (".log", ".out", ".err", ".txt")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank's own process; `ticks` (start time) tells it from a later one of the same pid."""

    rank: int
    pid: int
    ticks: int
    local_rank: int | None
    world_size: int | None


def environment(pid: int) -> dict[str, str] | None:
    """Return a process's environment; None where it cannot be read, which says nothing about the process."""
    try:
        raw = proctable.environ_bytes(pid)
    except OSError:
        return None
    pairs = (entry.decode(errors="replace").partition("=") for entry in raw.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _number(env: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), None)


def rank_processes(pids: Iterable[int]) -> list[RankProcess]:
    """Return the processes that are ranks, by rank: a child of a rank inherits its RANK, and is a helper."""
    found: dict[int, tuple[int | None, RankProcess]] = {}
    for pid in sorted(set(pids)):
        try:
            status, env = proctable.read(pid), environment(pid)
        except OSError:
            continue
        if status is None or not env:
            continue
        rank = _number(env, _RANK)
        if rank is not None:
            one = RankProcess(rank, pid, status.ticks, _number(env, _LOCAL), _number(env, _WORLD))
            found[pid] = (status.ppid, one)
    top = [
        one
        for ppid, one in found.values()
        if ppid not in found or found[ppid][1].rank != one.rank  # its parent is the same rank: a loader, a compiler
    ]
    return sorted(top, key=lambda one: (one.rank, one.ticks, one.pid))


def seen(process: RankProcess, job: JobId, now_s: float) -> ProcessSeen | None:
    """Return the state of a rank's process now; GONE where its pid is free or belongs to another.

    None: it cannot be seen now, which is no sign of its end.
    """
    try:
        status = proctable.read(process.pid)
    except OSError:
        return None
    origin = Origin(rank=process.rank, local_rank=process.local_rank, pid=process.pid)
    if status is None or status.ticks != process.ticks:
        return ProcessSeen(job=job, t_s=now_s, origin=origin, state=ProcState.GONE)
    state = _STATES.get(status.state, ProcState.SLEEPING)
    return ProcessSeen(job=job, t_s=now_s, origin=origin, state=state, cpu_s=status.cpu_s)


def log_files(pids: Iterable[int]) -> list[str]:
    """Return the files that processes write their output to: descriptors 1 and 2, and open logs by name."""
    found: set[str] = set()
    for pid in pids:
        folder = _PROC / str(pid) / "fd"
        try:
            numbers = sorted(os.listdir(folder))
        except OSError:
            continue
        for number in numbers:
            path = _written_file(folder / number, int(number) in (1, 2))
            if path is not None:
                found.add(path)
    return sorted(found)


def _written_file(fd: Path, is_output: bool) -> str | None:
    try:
        path = os.readlink(fd)
        if not path.startswith("/") or path.endswith(" (deleted)"):
            return None
        if not is_output and not path.endswith(_LOG_SUFFIXES):
            return None
        status = os.stat(path)
        writable = os.lstat(fd).st_mode & stat.S_IWUSR
    except OSError:
        return None
    return path if stat.S_ISREG(status.st_mode) and writable else None


def pipe_readers(pids: Iterable[int]) -> list[int]:
    """Return who reads the pipes that these processes write to, as `tee` behind `train | tee log`."""
    pipes = {name for pid in pids for number in ("1", "2") if (name := _link(pid, number)).startswith("pipe:")}
    if not pipes:
        return []
    return sorted(int(e) for e in os.listdir(_PROC) if e.isdigit() and _link(int(e), "0") in pipes)


def _link(pid: int, number: str) -> str:
    try:
        return os.readlink(_PROC / str(pid) / "fd" / number)
    except OSError:
        return ""
