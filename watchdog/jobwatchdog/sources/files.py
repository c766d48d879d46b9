"""Whole logs for replay: files, folders, compressed ones, standard input."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import zstandard
from typing_extensions import Buffer

from jobwatchdog.model import NO_JOB, JobId
from jobwatchdog.signals.scanner import StreamInfo

BLOCK_BYTES: Final = 1 << 18  # stays in the processor's cache between reading and matching
SNIFF_BYTES: Final = 8192
FOLDER_FILES_MAX: Final = 100_000
# In folders only; a file that is named is read whatever its name is.
_NO_LOG_NAMES: Final = (
    "pt pth ckpt bin safetensors distcp npy npz h5 parquet arrow png jpg jpeg gif pdf so o a pyc tar tgz zip "
    "whl db sqlite py yaml yml sh html js css"
)
_NO_LOGS: Final = frozenset(f".{name}" for name in _NO_LOG_NAMES.split(" "))


class _Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that was not read, or not to its end, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class LogFile:
    """One log. `size` is that on disk (compressed), None for a pipe; `trouble` is filled while reading."""

    path: str
    size: int | None
    info: StreamInfo
    trouble: list[Skipped] = field(default_factory=list)

    def blocks(self, on_progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
        """Yield the text in pieces; `on_progress` gets the bytes taken from disk.

        Never raises for what is wrong with the file: what can be read is, the rest is told in `trouble`.
        """
        try:
            with _open_raw(self.path) as raw:
                yield from self._decoded(_Source(raw, on_progress))
        except OSError as error:
            self.trouble.append(Skipped(self.path, f"cannot be read: {error.strerror or error}"))

    def _decoded(self, source: _Source) -> Iterator[bytes]:
        head, stream = source.head, io.BufferedReader(source, BLOCK_BYTES)
        try:
            if head[:2] == b"\x1f\x8b":
                yield from _pieces(gzip.GzipFile(fileobj=stream))
            elif head[:4] == b"\x28\xb5\x2f\xfd":
                unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
                yield from _pieces(unpacker.stream_reader(stream, read_across_frames=True))
            elif head[:3] == b"BZh":
                yield from _pieces(bz2.BZ2File(stream))
            elif head[:6] == b"\xfd7zXZ\x00":
                yield from _pieces(lzma.LZMAFile(stream))
            elif looks_binary(head):
                self.trouble.append(Skipped(self.path, "binary, not a log"))
            else:
                yield from _pieces(stream, BLOCK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError) as error:
            self.trouble.append(Skipped(self.path, f"compressed data is cut short or damaged: {error}"))


class _Source(io.RawIOBase):
    """What was looked at beforehand, then the rest; tells how much was taken."""

    def __init__(self, raw: BinaryIO, on_progress: Callable[[int], None] | None) -> None:
        self._raw = raw
        self._on_progress = on_progress
        self.head = self._take(SNIFF_BYTES)
        self._left = self.head

    def _take(self, size: int) -> bytes:
        data = self._raw.read(size)
        if self._on_progress is not None and data:
            self._on_progress(len(data))
        return data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        part = self._left[: len(view)] or self._take(len(view))
        self._left = self._left[len(part) :] if self._left else b""
        view[: len(part)] = part
        return len(part)


def _pieces(reader: _Reads, size: int = 1 << 20) -> Iterator[bytes]:
    # A damaged archive raises in the middle of a block: small reads lose less of it.
    while block := reader.read(size):
        yield block


def _open_raw(path: str) -> BinaryIO:
    if path == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return Path(path).open("rb")


def looks_binary(head: bytes) -> bool:
    """Whether a beginning is no text: many control bytes, as in weights and images."""
    if not head:
        return False
    odd = sum(1 for byte in head if byte < 32 and byte not in (7, 8, 9, 10, 12, 13, 27))
    return odd > max(8, len(head) // 10)


def open_paths(paths: Iterable[Path | str], job: JobId = NO_JOB) -> tuple[list[LogFile], list[Skipped]]:
    """Return the logs of files and folders (all below them, by name), and what was left out at once."""
    files: list[LogFile] = []
    skipped: list[Skipped] = []
    for path in paths:
        if str(path) == "-":
            files.append(LogFile("-", None, StreamInfo("-", job=job)))
            continue
        _add(Path(path), files, skipped, job)
    return files, skipped


def _add(path: Path, files: list[LogFile], skipped: list[Skipped], job: JobId) -> None:
    try:
        status = path.stat()
    except OSError as error:
        skipped.append(Skipped(str(path), f"cannot be read: {error.strerror or error}"))
        return
    if stat.S_ISDIR(status.st_mode):
        for one in _below(path, skipped):
            _add_file(one, files, skipped, job, named=False)
    else:
        _add_file(path, files, skipped, job, named=True)


def _below(folder: Path, skipped: list[Skipped]) -> list[Path]:
    found: list[Path] = []

    def failed(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), f"cannot be read: {error.strerror}"))

    for root, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root) / name for name in sorted(names) if not name.startswith(".")]
        if len(found) > FOLDER_FILES_MAX:
            skipped.append(Skipped(str(folder), f"more than {FOLDER_FILES_MAX:,} files: the rest is left out"))
            return found[:FOLDER_FILES_MAX]
    return found


def _add_file(path: Path, files: list[LogFile], skipped: list[Skipped], job: JobId, *, named: bool) -> None:
    try:
        status = path.stat()
    except OSError as error:
        skipped.append(Skipped(str(path), f"cannot be read: {error.strerror or error}"))
        return
    fifo_named = named and stat.S_ISFIFO(status.st_mode)
    if not stat.S_ISREG(status.st_mode) and not fifo_named:
        skipped.append(Skipped(str(path), "not a file"))
        return
    if not named and path.suffix.lower() in _NO_LOGS:
        skipped.append(Skipped(str(path), f"{path.suffix} is no log"))
        return
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    files.append(LogFile(str(path), size, StreamInfo(str(path), job=job, hint_s=status.st_mtime)))
