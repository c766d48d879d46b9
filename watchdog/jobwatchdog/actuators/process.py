"""Runs a program for a bounded time and keeps a bounded part of what it says; never through a shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OUTPUT_BYTES_MAX = 64 << 10
LOOK_S = 0.05  # how soon the end of a program is seen whose children keep its output open


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended; `code` is None where it had to be killed."""

    code: int | None
    output: str
    cut: bool  # more was said than is kept

    @property
    def well(self) -> bool:
        """Exit code 0."""
        return self.code == 0


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    bytes_max: int = OUTPUT_BYTES_MAX,
) -> Ended:
    """Both outputs together. OSError where it cannot be started. A cancelled caller leaves it to its time limit.

    In a thread: asyncio's own subprocess waits for pipes that a runaway grandchild may hold for ever.
    """
    return await asyncio.to_thread(_run, list(argv), timeout_s, stdin, env, bytes_max)


def _run(argv: list[str], timeout_s: float, stdin: bytes, env: Mapping[str, str] | None, bytes_max: int) -> Ended:
    deadline = time.monotonic() + timeout_s
    source = os.memfd_create("stdin")  # a file needs no feeding and cannot block
    try:
        with os.fdopen(os.dup(source), "wb") as file:
            file.write(stdin)
        os.lseek(source, 0, os.SEEK_SET)
        with subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else {**env},
            start_new_session=True,
        ) as process:
            try:
                kept, cut = _read(process, deadline, bytes_max)
                code = process.poll()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what it left in the background
    finally:
        os.close(source)
    return Ended(code, kept.decode(errors="replace"), cut)


def _read(process: subprocess.Popen[bytes], deadline: float, bytes_max: int) -> tuple[bytes, bool]:
    """Until the program has ended, closed its output and ended, or run out of time."""
    assert process.stdout is not None, "asked for a pipe"
    fd = process.stdout.fileno()
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    kept, cut, is_open = bytearray(), False, True
    while time.monotonic() < deadline:
        had_ended = process.poll() is not None
        ready = poller.poll(0 if had_ended else LOOK_S * 1000) if is_open else []
        if ready:
            chunk = os.read(fd, 1 << 16)
            is_open = bool(chunk)
            room = max(bytes_max - len(kept), 0)
            kept += chunk[:room]
            cut = cut or len(chunk) > room
        elif had_ended:
            break
        elif not is_open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(kept), cut
