"""Ends a whole set of processes and says so only when it is true."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobwatchdog.linux import proctable
from jobwatchdog.linux.proctable import Proc

RESCAN_S = 0.05  # how often new children are looked for while waiting
KILL_WAIT_S = 5.0  # SIGKILL takes effect at once unless the kernel holds the process (state D)

Members = Callable[[], list[Proc]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What ending a job took, and who is still there."""

    ended: int
    killed: int  # of these, the ones that did not go by themselves
    took_s: float
    left: tuple[Proc, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing of the job is alive."""
        return not self.left

    def words(self) -> str:
        """For receipts."""
        if self.left:
            names = ", ".join(f"{p.pid} ({p.name}, state {p.state})" for p in self.left)
            why = (
                " (state D: the kernel waits for a disk or a device)" if any(p.state == "D" for p in self.left) else ""
            )
            return f"still alive after SIGKILL{why}: {names}"
        how = f", {self.killed} by SIGKILL" if self.killed else ""
        return f"{self.ended} processes ended{how} in {self.took_s:.2f} s"


def end_all(members: Members, *, grace_s: float, first: signal.Signals = signal.SIGTERM) -> StopReport:
    """SIGTERM, up to `grace_s`, SIGKILL; stopped processes get SIGKILL at once, as they cannot honour SIGTERM.

    Blocking: call it from a thread. `members` is asked again and again, so children born meanwhile are ended too.
    """
    begun = time.monotonic()
    seen: set[tuple[int, int]] = set()
    asked: set[tuple[int, int]] = set()
    killed: set[tuple[int, int]] = set()
    deadline = begun + grace_s
    hard_deadline = deadline + KILL_WAIT_S
    while living := members():
        now = time.monotonic()
        seen.update(p.identity for p in living)
        if now >= hard_deadline:
            break
        hopeless = now >= deadline or all(p.stopped or p.identity in killed for p in living)
        for proc in living:
            if hopeless or proc.stopped:
                send(proc, signal.SIGKILL)
                killed.add(proc.identity)
            elif proc.identity not in asked:
                send(proc, first)
                asked.add(proc.identity)
        _wait_for_an_end(living, min(RESCAN_S, max(deadline - now, 0.005)))
    return StopReport(
        ended=len(seen) - len(living), killed=len(killed), took_s=time.monotonic() - begun, left=tuple(living)
    )


def send(proc: Proc, number: signal.Signals) -> None:
    """Through a pidfd: the pid cannot be given to another between the look and the signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError), _pidfd(proc.pid) as fd:
        now = proctable.read(proc.pid)
        if now is None or now.ticks != proc.ticks:
            return
        for each in (number, signal.SIGCONT) if number == signal.SIGKILL else (number,):
            if fd is None:
                os.kill(proc.pid, each)
            else:
                signal.pidfd_send_signal(fd, each)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """A descriptor for the process; None on kernels and sandboxes that have none."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as bad:
        if bad.errno == errno.ESRCH:
            raise
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _wait_for_an_end(living: list[Proc], seconds: float) -> None:
    """Returns when all of them have ended, or the time is over."""
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        poller = select.poll()
        waiting: set[int] = set()
        for proc in living[:512]:  # bounded: descriptors
            with contextlib.suppress(ProcessLookupError):
                if (fd := stack.enter_context(_pidfd(proc.pid))) is None:
                    time.sleep(seconds)
                    return
                waiting.add(fd)
                poller.register(fd, select.POLLIN)
        while waiting and (left := until - time.monotonic()) > 0:
            for fd, _ in poller.poll(left * 1000):
                poller.unregister(fd)
                waiting.discard(fd)
