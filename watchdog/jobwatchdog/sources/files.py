"""Whole logs for replay: files, folders, compressed ones, standard input."""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from jobwatchdog.model import NO_JOB, JobId
from jobwatchdog.signals.scanner import StreamInfo
from jobwatchdog.sources.decompress import DamagedError, decoder_for, decompressed

BLOCK_BYTES: Final = 1 << 18  # stays in the processor's cache between reading and matching
SNIFF_BYTES: Final = 8192
MAGIC_BYTES: Final = 6  # the longest beginning that tells an archive
FOLDER_FILES_MAX: Final = 100_000
# In folders only; a file that is named is read whatever its name is.
_NO_LOG_NAMES: Final = (
    "pt pth ckpt bin safetensors distcp npy npz h5 parquet arrow png jpg jpeg gif pdf so o a pyc tar tgz zip "
    "whl db sqlite py yaml yml sh html js css"
)
_NO_LOGS: Final = frozenset(f".{name}" for name in _NO_LOG_NAMES.split(" "))


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
                yield from self._text(_taken(raw, on_progress))
        except OSError as error:
            self._troubled(f"cannot be read: {error.strerror or error}")
        except DamagedError as error:
            self._troubled(str(error))

    def _text(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        head = b""
        while len(head) < MAGIC_BYTES and (block := next(blocks, b"")):  # a pipe may begin with a single byte
            head += block
        if self.size is None and not head:
            self._troubled("nothing came out of the pipe")
        blocks = itertools.chain([head], blocks) if head else blocks
        if (make := decoder_for(head)) is not None:
            blocks = decompressed(blocks, make)
        n_blocks = n_binary = 0
        for block in blocks:
            if not n_blocks and looks_binary(block[:SNIFF_BYTES]):
                self._troubled("binary, not a log")
                return
            n_blocks += 1
            n_binary += _has_binary(block)
            yield block
        if n_binary:
            self._troubled(
                f"{n_binary} of {n_blocks} pieces of {BLOCK_BYTES >> 10} KiB hold binary data: read all the same"
            )

    def _troubled(self, reason: str) -> None:
        self.trouble.append(Skipped(self.path, reason))


def _taken(raw: BinaryIO, on_progress: Callable[[int], None] | None) -> Iterator[bytes]:
    while block := raw.read(BLOCK_BYTES):
        if on_progress is not None:
            on_progress(len(block))
        yield block


def _open_raw(path: str) -> BinaryIO:
    if path == "-":
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(handle, True)  # only the opening of a pipe must not wait for a writer that never comes
    return os.fdopen(handle, "rb", buffering=0)


_CONTROLS: Final = bytes({*range(32), 127} - {7, 8, 9, 10, 12, 13, 27})


def looks_binary(head: bytes) -> bool:
    """Whether a piece is no text: many control bytes or many that are no UTF-8, as in weights, images and archives.

    Text in an old single-byte encoding has few of either.
    """
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if not controls and head.isascii():
        return False
    broken = head.decode("utf-8", "replace").count("\ufffd")
    return controls + broken > max(8, len(head) // 7)


def _has_binary(block: bytes) -> bool:
    """Whether a piece begins or ends with what is no text, or does where its first null byte is."""
    null = block.find(b"\0")
    starts = {0, max(0, len(block) - SNIFF_BYTES), max(0, null)}
    return any(looks_binary(block[start : start + SNIFF_BYTES]) for start in starts)


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


def by_stream(name: str) -> str:
    """Order names, but errors after output: in logs without times what was printed leads up to what broke."""
    return name.replace("stderr", "stdout\x7f").replace(".err", ".out\x7f")


def _below(folder: Path, skipped: list[Skipped]) -> list[Path]:
    found: list[Path] = []

    def failed(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), f"cannot be read: {error.strerror}"))

    for root, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root) / name for name in sorted(names, key=by_stream) if not name.startswith(".")]
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
