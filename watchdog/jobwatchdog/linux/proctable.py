"""The process table, read from /proc: who is alive, whose child, in which state, with which environment.

A process is named by pid *and* start ticks: the kernel gives pids out again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DEAD = frozenset("ZXx")
STOPPED = frozenset("Tt")


@dataclass(frozen=True, slots=True)
class Proc:
    """One line of the process table."""

    pid: int
    ticks: int
    ppid: int
    pgrp: int
    session: int
    state: str  # R S D T t Z X, as in proc(5)
    name: str
    cpu_s: float = 0.0  # user and system time so far

    @property
    def alive(self) -> bool:
        """A zombie holds no port and no GPU memory."""
        return self.state not in DEAD

    @property
    def stopped(self) -> bool:
        """Stopped or traced: SIGTERM stays pending until it is continued."""
        return self.state in STOPPED

    @property
    def identity(self) -> tuple[int, int]:
        """What stays true of it when its pid is given out again."""
        return self.pid, self.ticks


def read(pid: int) -> Proc | None:
    """The process now, None when the kernel says that there is none.

    Raises OSError when the table cannot be read (no descriptors left): that says nothing about the process.
    """
    if (raw := _slurp(f"/proc/{pid}/stat")) is None:
        return None
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    return Proc(
        pid=pid,
        ticks=int(fields[19]),
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        state=fields[0].decode(),
        name=head.partition(b"(")[2].decode(errors="replace"),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
    )


def table() -> dict[int, Proc]:
    """All processes; those that end while we read are left out."""
    found = (read(int(name)) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208  # a Path each is slow
    return {proc.pid: proc for proc in found if proc is not None}


def descendants(procs: Mapping[int, Proc], roots: Iterable[int]) -> set[int]:
    """All below the roots (the roots themselves left out)."""
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def ancestors(procs: Mapping[int, Proc], pid: int) -> set[int]:
    """The process itself and all above it: never ours to end."""
    found: set[int] = set()
    while pid in procs and pid not in found:
        found.add(pid)
        pid = procs[pid].ppid
    return found


class MarkerFinder:
    """Finds processes by an entry `NAME=value` of their environment.

    Remembers who has none: an environment is fixed at exec, and what a stranger starts is a stranger.
    """

    def __init__(self, marker: str) -> None:
        self._needle = b"\0" + marker.encode() + b"\0"
        self._strangers: set[tuple[int, int]] = set()

    def among(self, procs: Iterable[Proc]) -> set[int]:
        """Those that carry the marker; unreadable ones belong to somebody else."""
        found: set[int] = set()
        strangers: set[tuple[int, int]] = set()  # only of the living: the memory stays as small as the table
        for proc in procs:
            if proc.identity in self._strangers:
                strangers.add(proc.identity)
                continue
            environ = environ_bytes(proc.pid)
            if self._needle in b"\0" + environ:
                found.add(proc.pid)
            elif environ:  # empty in the middle of an exec: ask again
                strangers.add(proc.identity)
        self._strangers = strangers
        return found


def environ_bytes(pid: int) -> bytes:
    """Raw environment, empty when it cannot be read: a stranger's, or one in the middle of an exec."""
    try:
        return _slurp(f"/proc/{pid}/environ") or b""
    except PermissionError:
        return b""


def _slurp(path: str) -> bytes | None:
    """None only where there is no such process. Path objects would cost more than the reads."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)


def boot_id() -> str:
    """Names this boot: ticks and pids mean nothing in another."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()
