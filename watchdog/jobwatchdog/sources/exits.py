"""The end of rank processes at the moment it happens: who goes first is the best witness of who is at fault."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobwatchdog.sources.procs import RankProcess

WATCHED_MAX: Final = 1024  # descriptors; more ranks on one machine are seen by sampling alone
_EXIT_CODE: Final = 52 - 3  # field of proc(5)'s stat, counted from the state (field 3)


@dataclass(frozen=True, slots=True)
class Exit:
    """When a process ended; code and signal both None: only its parent knows how."""

    process: RankProcess
    t_s: float
    code: int | None = None
    signal: int | None = None


class Exits:
    """Tells the end of processes that are not our children. Where the kernel has no pidfds it tells nothing."""

    def __init__(self, on_exit: Callable[[Exit], None]) -> None:
        self._on_exit = on_exit
        self._fds: dict[tuple[int, int], int] = {}

    def watch(self, processes: Iterable[RankProcess]) -> None:
        """Add those that are not watched yet. Call it on the event loop."""
        loop = asyncio.get_running_loop()
        for process in processes:
            key = (process.pid, process.ticks)
            if key in self._fds or len(self._fds) >= WATCHED_MAX:
                continue
            try:
                fd = os.pidfd_open(process.pid)
            except OSError:
                continue  # gone already, or no pidfds here: sampling sees it
            self._fds[key] = fd
            loop.add_reader(fd, self._ended, process)

    def _ended(self, process: RankProcess) -> None:
        now_s = time.time()
        self._forget((process.pid, process.ticks))
        code, signal = _how(process)
        self._on_exit(Exit(process, now_s, code, signal))

    def _forget(self, key: tuple[int, int]) -> None:
        if (fd := self._fds.pop(key, None)) is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def close(self) -> None:
        """Watch nothing any more."""
        for key in list(self._fds):
            self._forget(key)


def _how(process: RankProcess) -> tuple[int | None, int | None]:
    """Return exit code and signal while the process still waits for its parent to ask.

    The kernel shows 0 to those who may not know, so a 0 says nothing.
    """
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None, None
    if len(fields) <= _EXIT_CODE or int(fields[19]) != process.ticks or fields[0] != b"Z":
        return None, None
    status = int(fields[_EXIT_CODE])
    if status == 0:
        return None, None
    return (None, status & 0x7F) if status & 0x7F else (status >> 8, None)
