"""Runs a program for a bounded time and keeps a bounded part of what it says; never through a shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT_BYTES_MAX = 64 << 10


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
    cwd: Path | None = None,
    bytes_max: int = OUTPUT_BYTES_MAX,
) -> Ended:
    """Both outputs together. OSError where it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=None if env is None else {**env},
        cwd=cwd,
        start_new_session=True,
    )
    kept, cut = bytearray(), False
    code: int | None = None
    try:
        async with asyncio.timeout(timeout_s):
            assert process.stdin is not None, "asked for a pipe"
            assert process.stdout is not None, "asked for a pipe"
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(stdin)
                await process.stdin.drain()
            process.stdin.close()
            while chunk := await process.stdout.read(1 << 16):
                room = bytes_max - len(kept)
                kept += chunk[: max(room, 0)]
                cut = cut or len(chunk) > room
            code = await process.wait()
    except TimeoutError:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it left in the background
        await process.wait()
        # the transport would otherwise be closed by the garbage collector, perhaps after the loop
        getattr(process, "_transport").close()  # noqa: B009
    return Ended(code, kept.decode(errors="replace"), cut)
