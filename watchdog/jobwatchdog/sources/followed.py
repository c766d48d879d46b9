"""One followed path: the file under it now, and the one before it as long as something is still written there."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from jobwatchdog.signals.scanner import StreamInfo

READ_BYTES_MAX: Final = 1 << 20  # of one file in one look: a flood in one does not starve the others
OLD_QUIET_S: Final = 60.0  # a rotated file to which nothing was written for so long is let go
HALF_LINE_S: Final = 1.0  # a rotated file that ends within a line has so long for the rest of it
ROTATED_MAX: Final = 64  # rotated files remembered of one path
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class Position(NamedTuple):
    """How far a file was read; device and inode tell it from a later one of the same name."""

    device: int
    inode: int
    offset: int


class Block(NamedTuple):
    """Bytes of a file, up to `at`.

    `begins`: they are the first of a file that took the place of another, or was cut to nothing.
    """

    info: StreamInfo
    data: bytes
    begins: bool
    source: Followed
    at: Position


@dataclass(slots=True)
class _Open:
    """An open file. `half`: what was read of it ends within a line."""

    handle: int
    device: int
    inode: int
    offset: int = 0
    half: bool = False
    grew_at: float = 0.0

    def read(self, now: float) -> bytes:
        data = os.pread(self.handle, READ_BYTES_MAX, self.offset)
        if data:
            self.offset += len(data)
            self.half, self.grew_at = data[-1] not in b"\r\n", now
        return data

    def position(self) -> Position:
        return Position(self.device, self.inode, self.offset)


class NotAFileError(OSError):
    """A folder, a device, a pipe: reading it would fail, block, or take what another waits for."""


@dataclass(slots=True, eq=False)
class Followed:
    """State of one path. Read by one thread at a time; the event loop only sets `removed` and `late`."""

    path: str
    info: StreamInfo
    from_start: bool
    at: Position | None = None
    removed: bool = False
    told: bool = False  # that it cannot be read
    late: list[Block] = field(default_factory=list)
    retry_at: float = 0.0
    rotated: dict[tuple[int, int], Position] = field(default_factory=dict)  # former files of this path that were left
    _begins: bool = False  # the next bytes are the first of another file
    _old_begins: bool = False
    _retry_s: float = RETRY_S
    _now: _Open | None = None
    _old: _Open | None = None

    def position(self) -> Position | None:
        """How far the file under the path was read."""
        return self.at if self._now is None else self._now.position()

    def holds(self) -> set[tuple[int, int]]:
        """Device and inode of the files that are open."""
        return {(file.device, file.inode) for file in (self._now, self._old) if file is not None}

    def look(self, now: float, found: list[Block]) -> None:
        """Add what is new to `found`; what was added before an error counts.

        FileNotFoundError where there is nothing under the path, OSError where it is unreadable.
        """
        found += self.late
        self.late = []
        if self._old is not None:
            self._rest_of_old(self._old, now, found)
        if self._now is None:
            self._now = self._open()
        if not self._take(self._now, now, found):
            self._check(self._now, now, found)
        self.told, self._retry_s = False, RETRY_S

    def _take(self, file: _Open, now: float, found: list[Block]) -> int:
        data = file.read(now)
        if data:
            found.append(Block(self.info, data, self._begins, self, file.position()))
            self._begins = False
        return len(data)

    def _check(self, file: _Open, now: float, found: list[Block]) -> None:
        """Nothing was appended: was the file cut, or another put in its place?"""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return  # deleted: what its writer still appends is read through the handle
        if (status.st_dev, status.st_ino) != (file.device, file.inode):
            if self._may_leave(file, now, found):
                self._let_go_old()
                file.grew_at = now
                self._old, self._now = file, None
                self._begins = self._old_begins = True
                self.at, self.from_start = None, True
                self._now = self._open()
                self._take(self._now, now, found)
        elif status.st_size < file.offset:  # cut in place
            file.offset, self._begins = 0, True
            self._take(file, now, found)

    def _may_leave(self, file: _Open, now: float, found: list[Block]) -> bool:
        """Whether all of a rotated file was read, so that its successor's turn has come."""
        # Between the last read and the renaming something may have been written.
        rest = self._take(file, now, found)
        if rest == READ_BYTES_MAX or (file.half and now - file.grew_at < HALF_LINE_S):
            return False
        return self._old is None or not self._rest_of_old(self._old, now, found)

    def _rest_of_old(self, old: _Open, now: float, found: list[Block]) -> bool:
        """Writers keep a rotated file open for a while: what they still write is a stream of its own."""
        try:
            data = old.read(now)
        except OSError:
            self._let_go_old()
            return False
        if data:
            info = replace(self.info, file=f"{self.path} (rotated)")
            found.append(Block(info, data, self._old_begins, self, old.position()))
            self._old_begins = False
        elif now - old.grew_at > OLD_QUIET_S:
            self._let_go_old()
        return bool(data)

    def _open(self) -> _Open:
        _must_be_file(os.stat(self.path).st_mode)  # before it is opened: with some devices that alone does something
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(handle)
            _must_be_file(status.st_mode)
        except OSError:
            os.close(handle)
            raise
        file = _Open(handle, status.st_dev, status.st_ino)
        if self.at is not None:
            same = (self.at.device, self.at.inode) == (status.st_dev, status.st_ino)
            if same and self.at.offset <= status.st_size:
                file.offset = self.at.offset
            else:
                self._begins = True
        elif not self.from_start:
            file.offset = status.st_size
        self.at, self.from_start = None, True
        return file

    def missing(self) -> None:
        """There is nothing under the path: whatever appears is read from its beginning."""
        self.from_start = True

    def failed(self, now: float) -> None:
        """It could not be read: try again later, each time after a longer pause."""
        self.at = self.position()
        self._close_now()
        self.retry_at, self._retry_s = now + self._retry_s, min(2 * self._retry_s, RETRY_S_MAX)

    def close(self) -> None:
        """Give the handles back."""
        self._let_go_old()
        self._close_now()

    def _close_now(self) -> None:
        if self._now is not None:
            os.close(self._now.handle)
            self._now = None

    def _let_go_old(self) -> None:
        if (old := self._old) is not None:
            self._old = None
            self.rotated[old.device, old.inode] = old.position()
            if len(self.rotated) > ROTATED_MAX:
                del self.rotated[next(iter(self.rotated))]
            os.close(old.handle)


def _must_be_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotAFileError(f"not a file but {_what(mode)}")


def _what(mode: int) -> str:
    for test, name in ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return name
    return "a device"
