"""What is to be watched, and the hands that it can be moved with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobwatchdog.actuators.local.control import AttachError, JobControl, LocalJob, PidJob
from jobwatchdog.actuators.local.launcher import LocalLauncher
from jobwatchdog.actuators.local.records import JobSpec, job_folder, load_spec
from jobwatchdog.model import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """What to watch and how, in plain values: it travels to an actor as it is.

    One of `command` (start it), `pid` (take it over), `logs` (only look). `policies` are (file, text).
    """

    name: str
    state_dir: str
    command: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    pid: int | None = None
    logs: tuple[str, ...] = ()
    policies: tuple[tuple[str, str], ...] = ()
    checkpoints: tuple[str, ...] = ()
    catalogues: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    from_start: bool = True
    settle_s: float = 0.3
    ledger_url: str = ""  # of a database of this job's own; "" = the one it has, else a file in its folder


def control_of(spec: WatchSpec) -> JobControl | None:
    """Return how the job can be seen and restarted; None where there are only logs. AttachError says why not."""
    launcher = LocalLauncher(Path(spec.state_dir))
    if spec.pid is not None:
        return _pid_job(launcher, spec.pid)
    if spec.logs:
        return None
    folder = job_folder(launcher.state_dir, JobId(spec.name))
    known = load_spec(folder)
    if not spec.command and known is not None:
        return LocalJob(launcher, known)
    return LocalJob(launcher, JobSpec(job=JobId(spec.name), command=spec.command, cwd=spec.cwd, env=spec.env))


def _pid_job(launcher: LocalLauncher, pid: int) -> JobControl:
    try:
        return PidJob.attach(launcher, pid)
    except AttachError:
        # The process was replaced by an attempt of ours: go on with that one.
        for known in launcher.jobs():
            if str(known.job).startswith(f"pid-{pid}-") and (launcher.latest_attempt(known.job) or 0) > 0:
                return LocalJob(launcher, known)
        raise
