"""A job as actuators see it: state, processes, stop, start; ours from the beginning, or found running."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from jobwatchdog.actuators.local import killer
from jobwatchdog.actuators.local.killer import StopReport
from jobwatchdog.actuators.local.launcher import LocalLauncher
from jobwatchdog.actuators.local.records import Attempt, AttemptPhase, AttemptState, JobSpec, save_spec
from jobwatchdog.linux import proctable
from jobwatchdog.linux.pidfd import how_it_ended
from jobwatchdog.linux.proctable import Proc
from jobwatchdog.model import JobId


class AttachError(RuntimeError):
    """The process cannot be watched; the text says why and what would help."""


class JobControl(Protocol):
    """What a launcher must offer for its jobs to be stopped and restarted."""

    spec: JobSpec

    def latest_attempt(self) -> int:
        """0 is the first start."""

    def state(self, attempt: int) -> AttemptState:
        """What is known of an attempt now."""

    def cancelled(self) -> str | None:
        """Who ended the job for good, None when nobody did."""

    def mark_cancelled(self, by: str) -> None:
        """From now on no restart."""

    def cannot_restart(self) -> str | None:
        """Why a restart is out of the question, None when it is possible."""

    def processes(self, attempt: int) -> list[Proc]:
        """All living processes of the attempt."""

    async def stop(self, attempt: int, grace_s: float) -> StopReport:
        """Ends them all."""

    async def start(self, attempt: int, overrides: Mapping[str, str]) -> Attempt:
        """Starts the attempt, at most once in the world."""

    def signal(self, attempt: int, number: signal.Signals, only: frozenset[int] | None = None) -> list[Proc]:
        """Sends one signal to all of them, or to those with the pids of `only`; returns whom it reached."""


class LocalJob:
    """A job that our launcher started."""

    def __init__(self, launcher: LocalLauncher, spec: JobSpec) -> None:
        self.launcher = launcher
        self.spec = spec

    def latest_attempt(self) -> int:
        """From the claims."""
        return self.launcher.latest_attempt(self.spec.job) or 0

    def state(self, attempt: int) -> AttemptState:
        """From the records and the process table."""
        return self.launcher.state(self.spec.job, attempt)

    def cancelled(self) -> str | None:
        """From the marker that `run` leaves on Ctrl-C."""
        return self.launcher.cancelled(self.spec.job)

    def mark_cancelled(self, by: str) -> None:
        """A file in the job's folder: it holds for every later watchdog too."""
        self.launcher.mark_cancelled(self.spec.job, by)

    def cannot_restart(self) -> str | None:
        """The working directory may be gone."""
        if not Path(self.spec.cwd).is_dir():
            return f"its working directory {self.spec.cwd} is gone"
        return None

    def processes(self, attempt: int) -> list[Proc]:
        """By parentage and by the marker in the environment."""
        return self.launcher.processes(self.spec.job, attempt)

    async def stop(self, attempt: int, grace_s: float) -> StopReport:
        """SIGTERM, SIGKILL, and a last look."""
        return await self.launcher.stop(self.spec.job, attempt, grace_s)

    async def start(self, attempt: int, overrides: Mapping[str, str]) -> Attempt:
        """Through the shim."""
        return await self.launcher.start(self.spec, attempt, overrides)

    def signal(self, attempt: int, number: signal.Signals, only: frozenset[int] | None = None) -> list[Proc]:
        """Through pidfds, see killer."""
        reached = [proc for proc in self.processes(attempt) if only is None or proc.pid in only]
        for proc in reached:
            killer.send(proc, number)
        return reached


class PidJob(LocalJob):
    """A job that was running before we came: attempt 0 is a foreign process tree, later attempts are ours."""

    def __init__(self, launcher: LocalLauncher, spec: JobSpec, root: Proc, uid: int) -> None:
        super().__init__(launcher, spec)
        self.root = root
        self._uid = uid
        self._fd = _pidfd(root)  # for as long as we live: it tells how the process ended
        self._seen: dict[int, int] = {}  # pid → ticks of all that ever was in the tree: orphans stay known
        self.refresh()

    @classmethod
    def attach(cls, launcher: LocalLauncher, pid: int) -> PidJob:
        """Reads what is needed to start it again: command line, environment, folder, where its output goes."""
        procs = proctable.table()
        root = procs.get(pid)
        if root is None or not root.alive:
            raise AttachError(f"no process {pid} is running")
        if pid in proctable.ancestors(procs, os.getpid()):
            raise AttachError(f"process {pid} is this watchdog or one of its parents: it would end itself")
        proc = proctable.PROC / str(pid)
        try:
            uid = proc.stat().st_uid
            if not (command := (proc / "cmdline").read_bytes()):
                raise AttachError(f"process {pid} ({root.name}) has no command line (a kernel thread)")
            environ = (proc / "environ").read_bytes()
            cwd = os.readlink(proc / "cwd")  # noqa: PTH115  # as a string, also when it has been deleted
        except PermissionError:
            raise AttachError(
                f"process {pid} ({root.name}) belongs to another user: its environment cannot be read; "
                f"start the watchdog as that user"
            ) from None
        except OSError:
            raise AttachError(f"process {pid} ended while it was looked at") from None
        spec = JobSpec(
            job=JobId(f"pid-{pid}-{root.ticks}"),
            command=tuple(part.decode(errors="surrogateescape") for part in command.rstrip(b"\0").split(b"\0")),
            cwd=cwd,
            env=_parse_environ(environ),
            stdout=_regular_file(proc / "fd" / "1"),
            stderr=_regular_file(proc / "fd" / "2"),
        )
        save_spec(launcher.state_dir, spec)
        return cls(launcher, spec, root, uid)

    def refresh(self) -> list[Proc]:
        """Living members of the foreign tree; call it now and then, so that later orphans are known."""
        procs = proctable.table()
        known = {pid for pid, ticks in self._seen.items() if pid in procs and procs[pid].ticks == ticks}
        root = procs.get(self.root.pid)
        if root is not None and root.ticks == self.root.ticks:
            known.add(root.pid)
        known |= proctable.descendants(procs, known)
        known |= {p.pid for p in procs.values() if p.pgrp in known and p.pgrp == procs[p.pgrp].pgrp}
        known -= proctable.ancestors(procs, os.getpid())
        self._seen = {pid: procs[pid].ticks for pid in known}
        return [procs[pid] for pid in sorted(known) if procs[pid].alive]

    def state(self, attempt: int) -> AttemptState:
        """The exit code of a foreign process is told to its parent alone by kernels before Linux 6.15."""
        if attempt > 0:
            return super().state(attempt)
        now = proctable.read(self.root.pid)
        if now is not None and now.ticks == self.root.ticks and now.alive:
            return AttemptState(phase=AttemptPhase.RUNNING)
        how = how_it_ended(self._fd, self.root.pid, self.root.ticks) if self._fd is not None else None
        if how is not None:
            return AttemptState(phase=AttemptPhase.EXITED, code=how.code, signal=how.signal)
        detail = "it was not started by us: its exit code is not known"
        return AttemptState(phase=AttemptPhase.EXITED, detail=detail, foreign=True)

    def cannot_restart(self) -> str | None:
        """Never under another user's name."""
        if self._uid != os.geteuid():
            return f"it runs as user {self._uid}, the watchdog as {os.geteuid()}: a restart would change its owner"
        return super().cannot_restart()

    def processes(self, attempt: int) -> list[Proc]:
        """Attempt 0 by parentage alone."""
        return self.refresh() if attempt == 0 else super().processes(attempt)

    async def stop(self, attempt: int, grace_s: float) -> StopReport:
        """As for a job of ours."""
        if attempt > 0:
            return await super().stop(attempt, grace_s)
        return await asyncio.to_thread(killer.end_all, self.refresh, grace_s=grace_s)


def _pidfd(root: Proc) -> int | None:
    try:
        fd = os.pidfd_open(root.pid)
    except OSError:
        return None
    now = proctable.read(root.pid)
    if now is not None and now.identity == root.identity:
        return fd
    os.close(fd)  # it ended, and its pid is another's
    return None


def _parse_environ(raw: bytes) -> dict[str, str]:
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in raw.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _regular_file(fd: Path) -> str | None:
    """The file behind a descriptor; None for terminals, pipes, and files that were deleted."""
    try:
        path = os.readlink(fd)  # noqa: PTH115
        return path if stat.S_ISREG(os.stat(path).st_mode) else None  # noqa: PTH116
    except OSError:
        return None
