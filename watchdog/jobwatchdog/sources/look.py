"""One look at many files in a thread, and the thread, which is left behind when a file system hangs."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from jobwatchdog.model import Origin, SourceLost
from jobwatchdog.sources.followed import Block, Followed

LOOK_BYTES_MAX: Final = 16 << 20


class Look:
    """Goes through patterns and files once; its lists may be read while it is at it."""

    def __init__(self, patterns: list[str], files: list[Followed], removed: list[Followed], now: float) -> None:
        self.found: list[Block] = []
        self.lost: list[SourceLost] = []
        self.appeared: list[str] = []
        self.next_path: str | None = None  # where to go on when the share of this look was used up
        self.busy_with: str | None = None
        self.left = False  # nobody waits any more: finish what is in hand, and no more
        self._busy_since = time.monotonic()
        self._patterns = patterns
        self._files = files
        self._removed = removed
        self._now = now

    def stuck_for(self, seconds: float) -> str | None:
        """Return the path or pattern in hand when it has been for so long."""
        return self.busy_with if time.monotonic() - self._busy_since >= seconds else None

    def __call__(self) -> None:
        """Do it."""
        for file in self._removed:
            file.close()
        followed = {file.path for file in self._files}
        for pattern in self._patterns:
            if self._take_up(pattern):
                return
            matching = sorted(path for path in glob.glob(pattern, recursive=True) if path not in followed)
            self.appeared += [path for path in matching if os.path.isfile(path)]
        total = 0
        for file in self._files:
            if total >= LOOK_BYTES_MAX:
                self.next_path = file.path
                break
            if file.removed or self._now < file.retry_at:
                continue
            if self._take_up(file.path):
                return
            total += self._read(file)
        self.busy_with = None

    def _take_up(self, path: str) -> bool:
        """Begin with another; True when nobody waits any more."""
        self._busy_since, self.busy_with = time.monotonic(), path
        return self.left

    def _read(self, file: Followed) -> int:
        try:
            blocks = file.look(self._now)
        except FileNotFoundError:
            file.missing()  # not there yet, or gone: it may come (again)
            return 0
        except OSError as error:
            if not file.told:
                reason = error.strerror or str(error)
                self.lost.append(SourceLost(origin=Origin(file=file.path), source=file.path, reason=reason))
            file.told = True
            file.failed(self._now)
            return 0
        self.found += blocks
        return sum(len(block.data) for block in blocks)


class LookThread:
    """A thread that does one look after the other. It never keeps the process from ending."""

    def __init__(self) -> None:
        self._looks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, look: Look) -> asyncio.Future[None]:
        """Begin a look; the future is done when the look is."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tail", daemon=True)
            self._thread.start()

        def tell(error: BaseException | None) -> None:
            if not done.done():
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                look()
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody wants to know
                loop.call_soon_threadsafe(tell, error)

        self._looks.put(work)
        return done

    def _work(self) -> None:
        while (work := self._looks.get()) is not None:
            work()

    def leave(self) -> None:
        """It is stuck: should it come back, it ends."""
        self._looks.put(None)

    def end(self, files: Iterable[Followed]) -> None:
        """Close the files, after the look in hand; a thread that is stuck closes nothing, the process's end will."""

        def close() -> None:
            for file in files:
                file.close()

        if self._thread is None:
            close()
            return
        self._looks.put(close)
        self._looks.put(None)
