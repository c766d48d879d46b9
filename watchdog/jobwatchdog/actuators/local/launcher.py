"""Starts, finds again, judges and ends the jobs of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jobwatchdog.actuators.local import killer
from jobwatchdog.actuators.local.killer import StopReport
from jobwatchdog.actuators.local.records import (
    Attempt,
    AttemptPhase,
    AttemptState,
    JobSpec,
    job_folder,
    load_spec,
    names,
    read_json,
    save_spec,
    write_json,
)
from jobwatchdog.linux import proctable
from jobwatchdog.linux.proctable import MarkerFinder, Proc
from jobwatchdog.model import JobId

SHIM = Path(__file__).with_name("shim.py")
TAKEN = 17
GRACE_S = 1.0  # a job under restart has lost its last steps already; a save begun now would not be a good one
START_WAIT_S = 30.0
CLAIMS_MAX = 16  # shims that died before their command ran, for one attempt


class LaunchError(RuntimeError):
    """The job could not be started; the text says why."""


class LocalLauncher:
    """All local jobs below one state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir.resolve()  # one spelling: it marks the job's processes
        self._finders: dict[Path, MarkerFinder] = {}

    # ---- starting -----------------------------------------------------------------------------------

    async def start(self, spec: JobSpec, attempt: int, overrides: Mapping[str, str] | None = None) -> Attempt:
        """Starts the attempt unless it was started before, by whomever; either way returns it."""
        folder = self.attempt_folder(spec.job, attempt)
        await asyncio.to_thread(self._remember, spec, folder)
        state = self.state(spec.job, attempt)
        if state.phase in (AttemptPhase.ABSENT, AttemptPhase.ABANDONED):
            started_here = await asyncio.to_thread(self._run_shim, spec, attempt, folder, overrides or {})
        else:
            started_here = False
        found = await self._await_start(spec.job, attempt)
        return replace(found, started_here=started_here)

    def _remember(self, spec: JobSpec, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if load_spec(folder.parent) != spec:
            save_spec(self.state_dir, spec)

    def _run_shim(self, spec: JobSpec, attempt: int, folder: Path, overrides: Mapping[str, str]) -> bool:
        """True when this call started the command, False when another had claimed it."""
        argv = [sys.executable, "-I", "-S", str(SHIM), str(folder), "--claim", next_claim(folder)]
        for option, path in (("--stdout", spec.stdout), ("--stderr", spec.stderr)):
            argv += [option, path] if path else []
        done = subprocess.run(
            [*argv, "--", *spec.command],
            cwd=spec.cwd,
            env=job_environment(spec, attempt, folder, overrides),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=START_WAIT_S,
            check=False,
        )
        if done.returncode not in (0, TAKEN):
            raise LaunchError(f"attempt {attempt} of {spec.job}: {done.stderr.decode(errors='replace').strip()}")
        return done.returncode == 0

    async def _await_start(self, job: JobId, attempt: int) -> Attempt:
        """Another's shim may be between its claim and its start record: milliseconds."""
        deadline = time.monotonic() + START_WAIT_S
        while (found := self.adopt(job, attempt)) is None:
            if time.monotonic() > deadline or self.state(job, attempt).phase is AttemptPhase.ABANDONED:
                raise LaunchError(f"attempt {attempt} of {job} was claimed, but its command never ran")
            await asyncio.sleep(0.01)
        return found

    # ---- finding again ------------------------------------------------------------------------------

    def attempt_folder(self, job: JobId, attempt: int) -> Path:
        """Where the attempt's records and logs lie."""
        return job_folder(self.state_dir, job) / f"attempt-{attempt}"

    def jobs(self) -> list[JobSpec]:
        """All jobs with a readable specification, by name of folder."""
        folder = self.state_dir / "jobs"
        found = (load_spec(folder / name) for name in names(folder))
        return [spec for spec in found if spec is not None]

    def latest_attempt(self, job: JobId) -> int | None:
        """The highest attempt that was claimed."""
        folder = job_folder(self.state_dir, job)
        numbers = [
            int(number)
            for name in names(folder)
            if (number := name.removeprefix("attempt-")).isdigit() and number != name and _claims(folder / name)
        ]
        return max(numbers, default=None)

    def adopt(self, job: JobId, attempt: int | None = None) -> Attempt | None:
        """The attempt (default: the latest) as its start record tells it; None when its command never ran."""
        number = self.latest_attempt(job) if attempt is None else attempt
        if number is None:
            return None
        folder = self.attempt_folder(job, number)
        record = read_json(folder / "start.json")
        if record is None:
            return None
        return Attempt(
            job=job,
            number=number,
            folder=folder,
            pid=record["pid"],
            ticks=record["ticks"],
            shim_pid=record["shim"]["pid"],
            boot=record["boot"],
            started_s=record["time"],
            started_here=False,
        )

    def state(self, job: JobId, attempt: int) -> AttemptState:
        """What the records and the process table say now."""
        folder = self.attempt_folder(job, attempt)
        if (ended := read_json(folder / "exit.json")) is not None:
            return _exited(ended)
        start = read_json(folder / "start.json")
        if start is None:
            return _unstarted(folder)
        if _elsewhere(start):
            return AttemptState(phase=AttemptPhase.UNSEEN, detail=f"it was started on {start['host']}")
        if start["boot"] != proctable.boot_id():
            return AttemptState(phase=AttemptPhase.EXITED, detail="the machine was started again since")
        if _alive(start):
            return AttemptState(phase=AttemptPhase.RUNNING)
        if (ended := read_json(folder / "exit.json")) is not None:
            return _exited(ended)
        if _alive(start["shim"]):
            return AttemptState(phase=AttemptPhase.RUNNING, detail="ending")
        return AttemptState(phase=AttemptPhase.EXITED, detail="it ended unseen: its shim was killed too")

    async def wait(self, attempt: Attempt) -> AttemptState:
        """Returns when the attempt's command has ended, within milliseconds of its end."""
        while (state := self.state(attempt.job, attempt.number)).phase is AttemptPhase.RUNNING:
            if state.detail == "ending":
                await asyncio.sleep(0.005)
            else:
                await _process_end(attempt.pid)
        return state

    # ---- ending -------------------------------------------------------------------------------------

    def processes(self, job: JobId, attempt: int) -> list[Proc]:
        """All living processes of the attempt, also those that left its session or lost their parents."""
        folder = self.attempt_folder(job, attempt)
        procs = proctable.table()
        roots, spare = {}, proctable.ancestors(procs, os.getpid()) | _shims(folder, procs)
        if (start := read_json(folder / "start.json")) is not None and start["boot"] == proctable.boot_id():
            for record in (start, start["shim"]):
                proc = procs.get(record["pid"])
                if proc is not None and proc.ticks == record["ticks"]:
                    roots[proc.pid] = proc
        members = proctable.descendants(procs, roots) | set(roots)
        strangers = procs.keys() - members - spare
        finder = self._finders.setdefault(folder, MarkerFinder(f"JOBWATCHDOG_ATTEMPT_DIR={folder}"))
        members |= finder.among(procs[pid] for pid in strangers)
        members |= proctable.descendants(procs, members)
        return [procs[pid] for pid in sorted(members - spare) if procs[pid].alive]

    async def stop(
        self, job: JobId, attempt: int, grace_s: float = GRACE_S, first: signal.Signals = signal.SIGTERM
    ) -> StopReport:
        """Ends every process of the attempt; nothing of it is alive afterwards unless the report says so."""
        return await asyncio.to_thread(
            killer.end_all, lambda: self.processes(job, attempt), grace_s=grace_s, first=first
        )

    def signal(self, job: JobId, attempt: int, number: signal.Signals) -> list[Proc]:
        """Sends one signal to every process of the attempt; returns those that were there."""
        living = self.processes(job, attempt)
        for proc in living:
            killer.send(proc, number)
        return living

    def mark_cancelled(self, job: JobId, by: str) -> None:
        """The job's user ended it: no restart, ever."""
        write_json(job_folder(self.state_dir, job) / "cancelled", {"by": by, "time": time.time()})

    def cancelled(self, job: JobId) -> str | None:
        """Who cancelled the job, None when nobody did."""
        folder = job_folder(self.state_dir, job)
        if "cancelled" not in names(folder):
            return None
        return str((read_json(folder / "cancelled") or {}).get("by", "its user"))


def next_claim(folder: Path) -> str:
    """Name of the claim to take: a further one only where all before were left by shims that died unstarted.

    Several callers may come to the same answer; O_EXCL then lets one of them through.
    """
    for number in range(CLAIMS_MAX):
        name = f"claim.{number}" if number else "claim"
        if (folder / name).exists() and not _claimant_alive(folder / name) and not (folder / "start.json").exists():
            continue
        return name
    raise LaunchError(f"{folder}: {CLAIMS_MAX} shims died before they could start the command; see the system log")


def job_environment(spec: JobSpec, attempt: int, folder: Path, overrides: Mapping[str, str]) -> dict[str, str]:
    """The job's own environment, what every job of ours gets, and on top what this attempt's plan asks for."""
    env = {
        # torchrun: without it the workers of a second attempt may read the dead attempt's addresses from the store
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",  # lines arrive when they are written
        **spec.env,
    }
    for name in ("JOBWATCHDOG_RESUME_FROM", "JOBWATCHDOG_RESUME_STEP"):
        env.pop(name, None)  # those of an outer or an earlier attempt do not hold for this one
    env |= overrides
    env |= {
        "JOBWATCHDOG_JOB": spec.job,
        "JOBWATCHDOG_ATTEMPT": str(attempt),
        "JOBWATCHDOG_ATTEMPT_DIR": str(folder),
    }
    return env


def _shims(folder: Path, procs: Mapping[int, Proc]) -> set[int]:
    """Shims carry the marker of the job that they watch; they are not of the job and end by themselves."""
    claims = (read_json(path) for path in _claims(folder))
    return {c["pid"] for c in claims if c and c["pid"] in procs and procs[c["pid"]].ticks == c["ticks"]}


def _claims(folder: Path) -> list[Path]:
    return [folder / name for name in names(folder) if name.startswith("claim")]


def _alive(record: Mapping[str, object]) -> bool:
    proc = proctable.read(int(str(record["pid"])))
    return proc is not None and proc.ticks == record["ticks"] and proc.alive


def _elsewhere(record: Mapping[str, object]) -> bool:
    """Another boot on another host; a container that changed its name keeps the boot."""
    return record["boot"] != proctable.boot_id() and record.get("host", os.uname().nodename) != os.uname().nodename


def _claimant_alive(claim: Path) -> bool:
    record = read_json(claim)
    if record is None:
        return time.time() - claim.stat().st_mtime < START_WAIT_S  # between creation and its first bytes
    if _elsewhere(record):
        return True  # cannot be seen: never taken for dead
    return record["boot"] == proctable.boot_id() and _alive(record)


def _unstarted(folder: Path) -> AttemptState:
    if not (claims := _claims(folder)):
        return AttemptState(phase=AttemptPhase.ABSENT)
    if any(_claimant_alive(claim) for claim in claims):
        return AttemptState(phase=AttemptPhase.STARTING)
    if (folder / "start.json").exists():
        return AttemptState(phase=AttemptPhase.STARTING)  # it was written while we looked
    return AttemptState(phase=AttemptPhase.ABANDONED, detail="its shim died before the command ran")


def _exited(record: Mapping[str, object]) -> AttemptState:
    code, number, ended = record.get("code"), record.get("signal"), record.get("time")
    return AttemptState(
        phase=AttemptPhase.EXITED,
        code=code if isinstance(code, int) else None,
        signal=number if isinstance(number, int) else None,
        ended_s=float(ended) if isinstance(ended, int | float) else None,
        detail=str(record.get("error") or ""),
    )


async def _process_end(pid: int) -> None:
    """Waits on a process that is not our child; without pidfd, by looking five times a second."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        await asyncio.sleep(0.2)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
