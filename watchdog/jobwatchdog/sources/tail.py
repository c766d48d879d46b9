"""Follows many growing files at once by looking at them: works where notifications do not (NFS, Lustre)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from jobwatchdog.model import Origin, SourceLost
from jobwatchdog.signals.scanner import StreamInfo
from jobwatchdog.sources.followed import Block, Followed, Position
from jobwatchdog.sources.look import Look, LookThread

LOOK_S: Final = 0.02  # between looks while something grows
LOOK_S_MAX: Final = 0.25  # while nothing does
REST_LOOKS: Final = 50  # empty looks in a row after which the pause grows
GLOB_S: Final = 1.0  # between looks for files that appear later
LEAVE_S: Final = 0.5  # a file that takes longer is left to its thread, the others go to a new one
HUNG_S: Final = 10.0  # a file that takes longer is told: its file system does not answer
HUNG_MAX: Final = 256  # threads left behind

__all__ = ["Block", "Blocks", "Position", "Tailer"]

Blocks = list[Block]
OnBlocks = Callable[[Blocks], Awaitable[None]]
OnLost = Callable[[SourceLost], Awaitable[None]]


class Tailer:
    """Delivers what is appended to files, in order within each file.

    A path may appear later, be replaced (rotation), shrink (truncation) or vanish. Nothing is read on the event loop:
    a file system that hangs costs a thread and a `SourceLost`; the other files are read on.
    """

    def __init__(self, on_blocks: OnBlocks, on_lost: OnLost | None = None, *, hung_s: float = HUNG_S) -> None:
        self._on_blocks = on_blocks
        self._on_lost = on_lost
        self._hung_s = hung_s
        self._files: dict[str, Followed] = {}
        self._removed: list[Followed] = []  # their handles are closed by the thread that reads
        self._globs: set[str] = set()
        self._unwanted: set[str] = set()  # removed: a pattern does not bring them back
        self._hung: dict[str, float] = {}  # paths and patterns that a thread is stuck in, and when to tell it
        self._next_glob = 0.0
        self._first: str | None = None  # where the next look begins
        self._stopping = False
        self._thread = LookThread()

    def add(
        self, path: str, info: StreamInfo | None = None, *, from_start: bool = True, at: Position | None = None
    ) -> None:
        """Follow a path, whether it exists yet or not; `at` goes on where an earlier following ended."""
        self._unwanted.discard(path)
        if path not in self._files:
            self._files[path] = Followed(path, info or StreamInfo(path), from_start, at)

    def add_glob(self, pattern: str) -> None:
        """Follow every path that matches, also those that appear later."""
        self._globs.add(pattern)
        self._next_glob = 0.0

    def remove(self, path: str) -> None:
        """Follow a path no more; nothing of it is delivered after this."""
        if (file := self._files.pop(path, None)) is not None:
            file.removed = True
            self._unwanted.add(path)
            if path not in self._hung:  # else a thread is using its handles: they are closed when it comes back
                self._removed.append(file)

    def paths(self) -> list[str]:
        """Return the followed paths."""
        return sorted(self._files)

    def positions(self) -> Mapping[str, Position]:
        """Return how far each file was read, those that were never there left out."""
        return {path: at for path, file in sorted(self._files.items()) if (at := file.position()) is not None}

    def stop(self) -> None:
        """End `run` after one more look."""
        self._stopping = True

    async def run(self) -> None:
        """Look until stopped; then look until nothing more comes."""
        idle = 0
        try:
            while True:
                stopping = self._stopping
                grew = await self._turn()
                if stopping and not grew:
                    return
                idle = 0 if grew else idle + 1
                await asyncio.sleep(0 if grew and stopping else _pause_s(idle))
        finally:
            files = [file for path, file in self._files.items() if path not in self._hung]
            self._thread.end([*files, *self._removed])

    # ---- one look at all files --------------------------------------------------------------------

    async def _turn(self) -> bool:
        now = time.monotonic()
        await self._say_hung(now)
        if self._stopping:
            now = math.inf  # the last looks: everything is due
        patterns: list[str] = []
        if self._globs and now >= self._next_glob:
            self._next_glob = now + GLOB_S
            patterns = sorted(self._globs - self._hung.keys())
        known = self._files.keys() | self._unwanted
        look = Look(self._in_turn(), now, patterns=patterns, known=known, removed=self._removed)
        self._removed = []
        done = self._thread.start(look)
        leave_s = min(LEAVE_S, self._hung_s)
        while not done.done():
            await asyncio.wait({done}, timeout=leave_s)
            if not done.done() and len(self._hung) < HUNG_MAX and (stuck := look.leave(leave_s)) is not None:
                return await self._leave_behind(look, done, stuck, time.monotonic() + self._hung_s - leave_s)
        done.result()
        return await self._deliver(look, look.found)

    def _in_turn(self) -> list[Followed]:
        """All files that may be read, beginning with the one after the last that was served when the share ran out."""
        paths = [path for path in self._files if path not in self._hung]
        start = paths.index(self._first) if self._first in paths else 0
        return [self._files[path] for path in paths[start:] + paths[:start]]

    async def _deliver(self, look: Look, found: Blocks) -> bool:
        """Hand on what was found, and follow what appeared."""
        for path, at in look.appeared.items():
            if path not in self._unwanted:
                self.add(path, at=at)
        self._first = look.next_path
        await self._say_lost(look.lost)
        blocks = [block for block in found if not block.source.removed]
        if blocks:
            await self._on_blocks(blocks)
        return bool(blocks) or look.next_path is not None or bool(look.appeared)

    async def _leave_behind(self, look: Look, done: asyncio.Future[None], stuck: str, tell_at: float) -> bool:
        """A thread does not come back from one file: it keeps that one, and another thread takes over the rest."""
        so_far = list(look.found)
        self._hung[stuck] = tell_at
        self._thread.leave()
        self._thread = LookThread()

        def came_back(done: asyncio.Future[None]) -> None:
            # What the late read brought comes first, then the file is looked at again.
            done.exception()  # whatever it is, the next look meets it too
            del self._hung[stuck]
            if (file := look.in_hand) is not None:
                file.late = [*file.late, *look.found[len(so_far) :]]
                if file.removed:
                    self._removed.append(file)

        done.add_done_callback(came_back)
        return await self._deliver(look, so_far)

    async def _say_hung(self, now: float) -> None:
        reason = f"no answer from its file system in {self._hung_s:g} s"
        for path, tell_at in list(self._hung.items()):
            if now >= tell_at and path in self._hung:
                self._hung[path] = math.inf
                await self._say_lost([SourceLost(origin=Origin(file=path), source=path, reason=reason)])

    async def _say_lost(self, lost: Iterable[SourceLost]) -> None:
        if self._on_lost is not None:
            for one in lost:
                file = self._files.get(one.source)
                await self._on_lost(one if file is None else replace(one, job=file.info.job))


def _pause_s(idle: int) -> float:
    return LOOK_S if idle < REST_LOOKS else min(LOOK_S_MAX, LOOK_S * (1 + idle - REST_LOOKS))
