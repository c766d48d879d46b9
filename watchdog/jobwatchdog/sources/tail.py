"""Follows many growing files at once by looking at them: works where notifications do not (NFS, Lustre)."""

from __future__ import annotations

import asyncio
import glob
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from jobwatchdog.model import Origin, SourceLost
from jobwatchdog.signals.scanner import StreamInfo

READ_BYTES_MAX: Final = 1 << 20  # of one file in one turn: a flood in one does not starve the others
TURN_BYTES_MAX: Final = 16 << 20
LOOK_S: Final = 0.02  # between looks while something grows
LOOK_S_MAX: Final = 0.25  # while nothing does
REST_LOOKS: Final = 50  # empty looks in a row after which the pause grows
GLOB_S: Final = 1.0  # between looks for files that appear later
HUNG_S: Final = 10.0  # a look that takes longer: the file system does not answer
RETRY_S_MAX: Final = 30.0

Blocks = list[tuple[StreamInfo, bytes]]
OnBlocks = Callable[[Blocks], Awaitable[None]]
OnLost = Callable[[SourceLost], Awaitable[None]]


@dataclass(slots=True)
class _File:
    """One followed path. `identity` tells a new file of the same name from the old one."""

    info: StreamInfo
    from_start: bool
    identity: tuple[int, int] | None = None
    handle: int = -1
    offset: int = 0
    lost: bool = False
    retry_at: float = 0.0
    retry_s: float = 1.0

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1


@dataclass(slots=True)
class _Look:
    """What one look in a thread found."""

    blocks: Blocks = field(default_factory=list)
    lost: list[SourceLost] = field(default_factory=list)
    more: bool = False


class Tailer:
    """Delivers what is appended to files, in order within each file.

    A path may appear later, be replaced (rotation), shrink (truncation) or vanish. Nothing is read on the
    event loop: a file system that hangs costs one thread and a `SourceLost`.
    """

    def __init__(self, on_blocks: OnBlocks, on_lost: OnLost | None = None) -> None:
        self._on_blocks = on_blocks
        self._on_lost = on_lost
        self._files: dict[str, _File] = {}
        self._globs: dict[str, StreamInfo | None] = {}
        self._next_glob = 0.0
        self._stopping = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tail")

    def add(self, path: str, info: StreamInfo | None = None, *, from_start: bool = True, offset: int = 0) -> None:
        """Follow a path, whether it exists yet or not."""
        if path not in self._files:
            file = _File(info or StreamInfo(path), from_start)
            file.offset = offset
            self._files[path] = file

    def add_glob(self, pattern: str) -> None:
        """Follow every path that matches, also those that appear later."""
        self._globs[pattern] = None
        self._next_glob = 0.0

    def remove(self, path: str) -> None:
        """Follow a path no more."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def paths(self) -> list[str]:
        """Return the followed paths."""
        return sorted(self._files)

    def positions(self) -> dict[str, int]:
        """Return how far each file was delivered."""
        return {path: file.offset for path, file in sorted(self._files.items())}

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
            for file in self._files.values():
                file.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _turn(self) -> bool:
        loop = asyncio.get_running_loop()
        look = loop.run_in_executor(self._pool, self._look, time.monotonic())
        try:
            found = await asyncio.wait_for(asyncio.shield(look), HUNG_S)
        except TimeoutError:
            await self._say_lost([SourceLost(source="files", reason=f"no answer from the file system in {HUNG_S:g} s")])
            found = await look  # the thread holds the files: nothing else can be read before it returns
        await self._say_lost(found.lost)
        if found.blocks:
            await self._on_blocks(found.blocks)
        return bool(found.blocks)

    async def _say_lost(self, lost: Iterable[SourceLost]) -> None:
        if self._on_lost is not None:
            for one in lost:
                await self._on_lost(one)

    # ---- in the thread --------------------------------------------------------------------------

    def _look(self, now: float) -> _Look:
        if now >= self._next_glob and self._globs:
            self._next_glob = now + GLOB_S
            for pattern in self._globs:
                for path in sorted(glob.glob(pattern, recursive=True)):
                    if path not in self._files and os.path.isfile(path):
                        self.add(path)
        found = _Look()
        total = 0
        for path, file in list(self._files.items()):
            if total >= TURN_BYTES_MAX:
                found.more = True
                break
            if now >= file.retry_at:
                total += self._read(path, file, now, found)
        return found

    def _read(self, path: str, file: _File, now: float, found: _Look) -> int:
        try:
            taken = self._take(path, file, found)
        except FileNotFoundError:
            return 0  # not there yet, or gone: it may come (again)
        except OSError as error:
            if not file.lost:
                reason = error.strerror or str(error)
                found.lost.append(SourceLost(job=file.info.job, origin=Origin(file=path), source=path, reason=reason))
            file.lost = True
            file.close()
            file.retry_at, file.retry_s = now + file.retry_s, min(2 * file.retry_s, RETRY_S_MAX)
            return 0
        file.lost, file.retry_s = False, 1.0
        return taken

    def _take(self, path: str, file: _File, found: _Look) -> int:
        if file.handle < 0:
            self._open(path, file)
        taken = self._append(file, found)
        if taken:
            return taken
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return 0  # deleted: what its writer still appends is read through the handle
        if (status.st_dev, status.st_ino) != file.identity:
            file.close()  # rotated; the old one was read to its end just now
            file.from_start, file.offset = True, 0
            self._open(path, file)
            return self._append(file, found)
        if status.st_size < file.offset:
            file.offset = 0  # truncated in place
            return self._append(file, found)
        return 0

    def _open(self, path: str, file: _File) -> None:
        file.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(file.handle)
        first = file.identity is None
        file.identity = (status.st_dev, status.st_ino)
        if first and not file.from_start:
            file.offset = status.st_size
        elif file.offset > status.st_size:
            file.offset = 0

    def _append(self, file: _File, found: _Look) -> int:
        data = os.pread(file.handle, READ_BYTES_MAX, file.offset)
        if data:
            file.offset += len(data)
            found.blocks.append((file.info, data))
        return len(data)


def _pause_s(idle: int) -> float:
    return LOOK_S if idle < REST_LOOKS else min(LOOK_S_MAX, LOOK_S * (1 + idle - REST_LOOKS))
