"""One look at many files in a thread, and the thread, which is left behind when a file system hangs."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from jobwatchdog.model import Origin, SourceLost
from jobwatchdog.sources.followed import Block, Followed, Position

LOOK_BYTES_MAX: Final = 16 << 20


class Look:
    """Goes through files and patterns once; its lists may be read while it is at it."""

    def __init__(
        self,
        files: Sequence[Followed],
        now: float,
        *,
        patterns: Iterable[str] = (),
        known: Collection[str] = (),
        removed: Iterable[Followed] = (),
    ) -> None:
        self.found: list[Block] = []
        self.lost: list[SourceLost] = []
        self.appeared: dict[str, Position | None] = {}  # paths that match, and where to begin with them
        self.next_path: str | None = None  # where to go on when the share of this look was used up
        self.in_hand: Followed | None = None
        self._busy_with: str | None = None
        self._busy_since = time.monotonic()
        self._left = False  # nobody waits any more: finish what is in hand, and no more
        self._lock = threading.Lock()
        self._files = files
        self._now = now
        self._patterns = patterns
        self._known = known
        self._removed = removed

    def leave(self, seconds: float) -> str | None:
        """Return the path or pattern that has been in hand for so long, if any; then no other is begun with."""
        with self._lock:
            if self._busy_with is None or time.monotonic() - self._busy_since < seconds:
                return None
            self._left = True
            return self._busy_with

    def __call__(self) -> None:
        """Do it."""
        for file in self._removed:
            self._take_up(file.path, file)
            file.close()
        total = 0
        for file in self._files:
            if total >= LOOK_BYTES_MAX:
                self.next_path = file.path
                break
            if file.removed or self._now < file.retry_at:
                continue
            if not self._take_up(file.path, file):
                return
            total += self._read(file)
        for pattern in self._patterns:
            if not self._take_up(pattern, None):
                return
            self._search(pattern)
        self._take_up(None, None)

    def _take_up(self, path: str | None, file: Followed | None) -> bool:
        """Begin with another; False when nobody waits any more."""
        with self._lock:
            if not self._left:
                self._busy_since, self._busy_with, self.in_hand = time.monotonic(), path, file
            return not self._left

    def _read(self, file: Followed) -> int:
        before = len(self.found)
        try:
            file.look(self._now, self.found)
        except FileNotFoundError:
            file.missing()  # not there yet, or gone: it may come (again)
        except OSError as error:
            if not file.told:
                reason = error.strerror or str(error)
                self.lost.append(SourceLost(origin=Origin(file=file.path), source=file.path, reason=reason))
            file.told = True
            file.failed(self._now)
        return sum(len(block.data) for block in self.found[before:])

    def _search(self, pattern: str) -> None:
        """A file that is followed under another name (a link, a rotated one) is not read twice."""
        held = {ident for file in self._files for ident in file.holds()}
        left = {ident: at for file in self._files for ident, at in file.rotated.items()}
        for path in sorted(glob.iglob(pattern, recursive=True)):
            if path in self._known or path in self.appeared:
                continue
            with contextlib.suppress(OSError):
                status = os.stat(path)
                ident = (status.st_dev, status.st_ino)
                if stat.S_ISREG(status.st_mode) and ident not in held:
                    held.add(ident)
                    self.appeared[path] = left.get(ident)


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
