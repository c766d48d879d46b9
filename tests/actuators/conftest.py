"""Jobs that leave no process behind, and actions as the engine would order them."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from jobwatchdog.actuators.base import ActionContext
from jobwatchdog.actuators.local.control import JobControl, LocalJob
from jobwatchdog.actuators.local.launcher import LocalLauncher
from jobwatchdog.actuators.local.records import JobSpec, job_folder
from jobwatchdog.model import (
    KIND_DEFAULTS,
    Action,
    ActionId,
    Incident,
    IncidentId,
    Job,
    JobId,
    Json,
    Kind,
    PlanId,
    Suspects,
    Verb,
)

JOB = JobId("job-1")


@pytest_asyncio.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LocalLauncher]:
    """Ends whatever a test left running."""
    made = LocalLauncher(tmp_path / "state")
    yield made
    for spec in made.jobs():
        for attempt in range(4):
            await made.stop(spec.job, attempt, grace_s=0)


@pytest.fixture
def toy_job(launcher: LocalLauncher, tmp_path: Path) -> Callable[..., LocalJob]:
    """The two-rank toy without PyTorch: it starts in a tenth of a second."""

    def make(*options: str) -> LocalJob:
        command = (
            sys.executable, "-m", "jobwatchdog.testing.toy_train", "--backend", "plain", "--step-s", "0.01",
            "--ckpt-every", "10", "--ckpt-dir", "ckpt", *options,
        )  # fmt: skip
        return LocalJob(launcher, JobSpec(job=JOB, command=command, cwd=str(tmp_path), env=dict(os.environ)))

    return make


def _action(verb: Verb, attempt: int = 0, args: Mapping[str, Json] | None = None, **more: float) -> Action:
    """With ids that differ by verb and attempt."""
    return Action(
        id=ActionId(f"{verb.value}-{attempt}"), key=f"{verb.value}:{JOB}:{attempt}", verb=verb, job=JOB,
        attempt=attempt,
        incident=IncidentId("i1"), plan=PlanId("p1"), args=args or {}, not_after_s=more.get("not_after_s"),
    )  # fmt: skip


def _context(
    tmp_path: Path, control: JobControl | None = None, kind: Kind = Kind.RANK_CRASH, **more: object
) -> ActionContext:
    """Of a job with one incident."""
    defaults = KIND_DEFAULTS[kind]
    onset_step, onset_s = more.pop("onset_step", None), more.pop("onset_s", None)
    incident = Incident(
        id=IncidentId("i1"), job=JOB, attempt=0, kind=kind, cause_class=defaults.cause_class,
        restart_helps=defaults.restart_helps, confidence=0.9, suspects=Suspects(nodes=("node-7", "node-9"), ranks=(1,)),
        onset_step=onset_step if isinstance(onset_step, int) else None,
        onset_s=onset_s if isinstance(onset_s, float) else None, summary="rank 1 is gone",
    )  # fmt: skip
    ctx = ActionContext(
        job=Job(id=JOB, launcher="local", name="toy"), folder=job_folder(tmp_path / "state", JOB), incident=incident,
        control=control,
    )  # fmt: skip
    return replace(ctx, **more)  # type: ignore[arg-type]  # the tests name real fields


@pytest.fixture
def action() -> Callable[..., Action]:
    """`action(verb, attempt=0, args=None, not_after_s=None)`."""
    return _action


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., ActionContext]:
    """`context(control=None, kind=…, onset_step=…, any field of ActionContext)`."""
    return lambda *args, **more: _context(tmp_path, *args, **more)
