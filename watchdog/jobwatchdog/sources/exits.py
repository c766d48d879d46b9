"""The end of rank processes at the moment it happens: who goes first is the best witness of who is at fault."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from jobwatchdog.linux.pidfd import Ended, how_it_ended
from jobwatchdog.sources.procs import RankProcess

WATCHED_MAX: Final = 1024  # descriptors; more ranks on one machine are seen by sampling alone
ASK_S: Final = 0.005
ASKS_MAX: Final = 10  # its parent asks for the status in this time, or is itself in trouble


@dataclass(frozen=True, slots=True)
class Exit:
    """When a process ended, and how; None where only its parent knows."""

    process: RankProcess
    t_s: float
    how: Ended | None


class Exits:
    """Tells the end of processes that are not our children. Where the kernel has no pidfds it tells nothing."""

    def __init__(self, on_exit: Callable[[Exit], None]) -> None:
        self._on_exit = on_exit
        self._fds: dict[RankProcess, int] = {}

    def watch(self, processes: Iterable[RankProcess]) -> None:
        """Add those that are not watched yet. Call it on the event loop."""
        loop = asyncio.get_running_loop()
        for process in processes:
            if process in self._fds or len(self._fds) >= WATCHED_MAX:
                continue
            try:
                fd = os.pidfd_open(process.pid)
            except OSError:
                continue  # gone already, or no pidfds here: sampling sees it
            self._fds[process] = fd
            loop.add_reader(fd, self._ended, process)

    def watches(self, process: RankProcess) -> bool:
        """Whether its end is still to be told."""
        return process in self._fds

    def _ended(self, process: RankProcess) -> None:
        asyncio.get_running_loop().remove_reader(self._fds[process])
        self._tell(process, time.time(), ASKS_MAX)

    def _tell(self, process: RankProcess, t_s: float, asks: int) -> None:
        if (fd := self._fds.get(process)) is None:
            return  # closed meanwhile
        how = how_it_ended(fd, process.pid, process.ticks)
        if how is None and asks:
            asyncio.get_running_loop().call_later(ASK_S, self._tell, process, t_s, asks - 1)
            return
        del self._fds[process]
        os.close(fd)
        self._on_exit(Exit(process, t_s, how))

    def close(self) -> None:
        """Watch nothing any more."""
        loop = asyncio.get_running_loop()
        for fd in self._fds.values():
            loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()
