"""One followed path: the file under it now, and the one before it as long as something is still written there."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from jobwatchdog.signals.scanner import StreamInfo

READ_BYTES_MAX: Final = 1 << 20  # of one file in one look: a flood in one does not starve the others
OLD_QUIET_S: Final = 5.0  # a rotated file to which nothing was written for so long is let go
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class Position(NamedTuple):
    """How far a file was read; device and inode tell it from a later one of the same name."""

    device: int
    inode: int
    offset: int


class Block(NamedTuple):
    """Bytes of a file. `begins`: they are the first of a file that took the place of another, or was cut to nothing."""

    info: StreamInfo
    data: bytes
    begins: bool
    source: Followed


@dataclass(slots=True)
class _Open:
    """An open file. `begins` until its first byte is delivered, where another was under this path before."""

    handle: int
    device: int
    inode: int
    offset: int = 0
    begins: bool = False
    quiet_since: float = 0.0

    def read(self) -> bytes:
        data = os.pread(self.handle, READ_BYTES_MAX, self.offset)
        self.offset += len(data)
        return data


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
    _retry_s: float = RETRY_S
    _now: _Open | None = None
    _old: _Open | None = None

    def position(self) -> Position | None:
        """How far the file under the path was read."""
        file = self._now
        return self.at if file is None else Position(file.device, file.inode, file.offset)

    def look(self, now: float) -> list[Block]:
        """Read what is new; FileNotFoundError where there is nothing under the path, OSError where it is unreadable."""
        blocks, self.late = self.late, []
        if self._old is not None:
            blocks += self._rest_of_old(self._old, now)
        if self._now is None:
            self._now = self._open()
        data = self._now.read()
        if data:
            blocks.append(self._block(self._now, data))
        else:
            blocks += self._check(self._now, now)
        self.told, self._retry_s = False, RETRY_S
        return blocks

    def _check(self, file: _Open, now: float) -> list[Block]:
        """Nothing was appended: was the file cut, or another put in its place?"""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return []  # deleted: what its writer still appends is read through the handle
        if (status.st_dev, status.st_ino) != (file.device, file.inode):
            # Between the read above and the renaming something may have been written.
            rest = file.read()
            blocks = [self._block(file, rest)] if rest else []
            if rest and len(rest) == READ_BYTES_MAX:
                return blocks
            self._let_go_old()
            file.quiet_since = now
            self._old, self._now = file, None
            self.at, self.from_start = None, True
            self._now = self._open(begins=True)
            return blocks
        if status.st_size < file.offset:
            file.offset, file.begins = 0, True  # cut in place
        return []

    def _rest_of_old(self, old: _Open, now: float) -> list[Block]:
        """Writers keep a rotated file open for a while: what they still write is a stream of its own."""
        data = old.read()
        if data:
            old.quiet_since = now
            return [Block(replace(self.info, file=f"{self.path} (rotated)"), data, False, self)]
        if now - old.quiet_since > OLD_QUIET_S:
            self._let_go_old()
        return []

    def _block(self, file: _Open, data: bytes) -> Block:
        begins, file.begins = file.begins, False
        return Block(self.info, data, begins, self)

    def _open(self, *, begins: bool = False) -> _Open:
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise NotAFileError(f"not a file but {_what(status.st_mode)}")
        file = _Open(handle, status.st_dev, status.st_ino, begins=begins)
        if self.at is not None:
            same = (self.at.device, self.at.inode) == (status.st_dev, status.st_ino)
            if same and self.at.offset <= status.st_size:
                file.offset = self.at.offset
            else:
                file.begins = True
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
        self.close()
        self.retry_at, self._retry_s = now + self._retry_s, min(2 * self._retry_s, RETRY_S_MAX)

    def close(self) -> None:
        """Give the handles back."""
        self._let_go_old()
        if self._now is not None:
            os.close(self._now.handle)
            self._now = None

    def _let_go_old(self) -> None:
        if self._old is not None:
            os.close(self._old.handle)
            self._old = None


def _what(mode: int) -> str:
    for test, name in ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return name
    return "a device"
