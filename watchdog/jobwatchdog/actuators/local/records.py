"""What lies in a job's folder: its specification, its attempts' claims, starts and ends.

<state>/jobs/<job>/spec.json            command, cwd, environment (mode 0600: it may hold secrets)
<state>/jobs/<job>/cancelled            its user ended it: never started again
<state>/jobs/<job>/attempt-N/claim      this attempt was begun (at most once)
                            /start.json pid, start ticks, boot id, argv, cwd, time
                            /exit.json  code, signal, time
                            /stdout.log /stderr.log
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from jobwatchdog.model import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """How a job is started. `stdout`/`stderr` are set where output goes to a file of the user's own (appended)."""

    job: JobId
    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    stdout: str | None = None
    stderr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One started attempt. `started_here` is False where somebody else had started it before."""

    job: JobId
    number: int
    folder: Path
    pid: int
    ticks: int
    shim_pid: int
    boot: str
    started_s: float
    started_here: bool = True

    @property
    def stdout(self) -> Path:
        """Where the shim sends the job's output unless its specification says otherwise."""
        return self.folder / "stdout.log"

    @property
    def stderr(self) -> Path:
        """As `stdout`."""
        return self.folder / "stderr.log"


class AttemptPhase(StrEnum):
    """What is known of an attempt."""

    ABSENT = "absent"  # never claimed
    STARTING = "starting"  # claimed, its shim is alive
    ABANDONED = "abandoned"  # claimed, but its shim died before the command ran: nothing ever ran
    RUNNING = "running"
    EXITED = "exited"
    UNSEEN = "unseen"  # on another machine that shares the state folder: neither running nor ended, as far as we know


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """Phase and, where it ended, how. Code and signal both None: it ended unseen."""

    phase: AttemptPhase
    code: int | None = None
    signal: int | None = None
    ended_s: float | None = None
    detail: str = ""
    foreign: bool = False  # not started by us, and its exit status was told to its parent alone

    @property
    def alive(self) -> bool:
        """It runs, or may run for all that is known."""
        return self.phase in (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.UNSEEN)

    @property
    def succeeded(self) -> bool:
        """Ended by itself with code 0."""
        return self.phase is AttemptPhase.EXITED and self.code == 0


def job_folder(state_dir: Path, job: JobId) -> Path:
    """The job's folder; odd characters of an id never leave it."""
    return state_dir / "jobs" / re.sub(r"[^A-Za-z0-9._=-]", "_", job).lstrip(".")


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Whole or not at all, durable when it returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as out:
        json.dump(value, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any] | None:
    """The record, None where there is none, or its text is none.

    Raises OSError where it may be there but cannot be read: that must never count as "it is not there".
    """
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def names(folder: Path) -> list[str]:
    """What lies in a folder, sorted; empty where there is no such folder. Raises OSError where it cannot be read.

    `Path.glob` would pass over a folder that it may not read, as if it were empty.
    """
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  # names are all that is asked
    except (FileNotFoundError, NotADirectoryError):
        return []


def save_spec(state_dir: Path, spec: JobSpec) -> None:
    """So that a watchdog that takes over knows how to start the job again."""
    record = {
        "job": spec.job,
        "command": list(spec.command),
        "cwd": spec.cwd,
        "env": dict(spec.env),
        "stdout": spec.stdout,
        "stderr": spec.stderr,
    }
    write_json(job_folder(state_dir, spec.job) / "spec.json", record)


def load_spec(folder: Path) -> JobSpec | None:
    """The specification in a job's folder."""
    record = read_json(folder / "spec.json")
    if record is None:
        return None
    return JobSpec(
        job=JobId(record["job"]),
        command=tuple(record["command"]),
        cwd=record["cwd"],
        env=record["env"],
        stdout=record["stdout"],
        stderr=record["stderr"],
    )
