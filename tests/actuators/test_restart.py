"""Restarts of a real two-rank job: from the right checkpoint, exactly once, and only when it should be."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobwatchdog.actuators.base import ActionContext
from jobwatchdog.actuators.local.control import AttachError, LocalJob, PidJob
from jobwatchdog.actuators.local.launcher import LocalLauncher
from jobwatchdog.actuators.local.records import AttemptPhase, write_json
from jobwatchdog.actuators.local.restart import RestartActuator
from jobwatchdog.linux import proctable
from jobwatchdog.model import Action, Kind, Outcome, Verb

MakeJob = Callable[..., LocalJob]
MakeAction = Callable[..., Action]
MakeContext = Callable[..., ActionContext]
RESTART = RestartActuator()


async def ended(job: LocalJob, attempt: int) -> AttemptPhase:
    """Waits for the attempt's end."""
    found = job.launcher.adopt(job.spec.job, attempt)
    assert found is not None
    async with asyncio.timeout(30):
        await job.launcher.wait(found)
    return job.state(attempt).phase


def output(job: LocalJob, attempt: int) -> str:
    """Both streams."""
    folder = job.launcher.attempt_folder(job.spec.job, attempt)
    return (folder / "stdout.log").read_text() + (folder / "stderr.log").read_text()


async def printed(job: LocalJob, attempt: int, text: str) -> None:
    """Waits for a line."""
    async with asyncio.timeout(30):
        while text not in output(job, attempt):
            await asyncio.sleep(0.02)


async def test_killed_rank_comes_back_from_the_newest_whole_checkpoint(
    toy_job: MakeJob, action: MakeAction, context: MakeContext, tmp_path: Path
) -> None:
    """The cut one is passed over by name, and the run finishes."""
    job = toy_job("--fault", "corrupt-checkpoint", "--fault-step", "35", "--steps", "45")
    await job.start(0, {})
    await ended(job, 0)
    assert "SIGKILL" in output(job, 0)
    ctx = context(job, checkpoint_paths=(tmp_path / "ckpt",))
    receipt = await RESTART.run(action(Verb.RESTART), ctx)
    assert receipt.outcome is Outcome.DONE, receipt.detail
    assert receipt.data["checkpoint_step"] == 20
    assert "step-000030" in str(receipt.data["skipped"])
    assert float(str(receipt.data["stop_s"])) + float(str(receipt.data["start_s"])) < 1
    await ended(job, 1)
    assert job.state(1).succeeded, output(job, 1)
    assert "at step 20" in output(job, 1)


async def test_a_bad_loss_goes_back_behind_its_own_checkpoints(
    toy_job: MakeJob, action: MakeAction, context: MakeContext, tmp_path: Path
) -> None:
    """Saved with NaN in it: whole, but younger than the fault. It stays bad for the restart after this one too."""
    job = toy_job("--fault", "nan", "--fault-step", "25", "--steps", "100000")
    await job.start(0, {})
    await printed(job, 0, "successfully saved checkpoint from iteration      40")
    ctx = context(job, Kind.LOSS_NAN, onset_step=25, checkpoint_paths=(tmp_path / "ckpt",))
    receipt = await RESTART.run(action(Verb.RESTART), ctx)
    assert receipt.data["checkpoint_step"] == 20, receipt
    assert "fault began at step 24" in str(receipt.data["skipped"])
    await printed(job, 1, "iter 21: loss")
    for path in (tmp_path / "ckpt").glob("step-*"):
        if "step-000020" not in path.name and path.stat().st_mtime > receipt.started_s:
            path.unlink()  # as if the second attempt had died before its first save
    receipt = await RESTART.run(action(Verb.RESTART, 1), context(job, checkpoint_paths=(tmp_path / "ckpt",)))
    assert receipt.outcome is Outcome.DONE
    assert "nan" not in output(job, 2)


async def test_asked_many_times_it_happens_once(toy_job: MakeJob, action: MakeAction, context: MakeContext) -> None:
    """Ten supervisors carry out the same action at the same time."""
    job = toy_job("--steps", "100000")
    await job.start(0, {})
    receipts = await asyncio.gather(*(RESTART.run(action(Verb.RESTART), context(job)) for _ in range(10)))
    assert {r.outcome for r in receipts} <= {Outcome.DONE, Outcome.SKIPPED}
    assert len({r.data["pid"] for r in receipts if r.outcome is Outcome.DONE}) == 1
    assert job.latest_attempt() == 1
    assert job.processes(0) == []
    await printed(job, 1, "iter 3:")
    assert output(job, 1).count("iter 2:") == 1


async def test_a_crash_of_the_watchdog_at_any_moment_is_resolved_by_looking(
    toy_job: MakeJob, action: MakeAction, context: MakeContext, tmp_path: Path
) -> None:
    """A watchdog is killed at random moments of one restart; the next looks, and repeats only what never happened."""
    script = """
import asyncio, os, pickle, sys
action, ctx = pickle.load(sys.stdin.buffer)
from jobwatchdog.actuators.local.restart import RestartActuator
print('begun', flush=True)
asyncio.run(RestartActuator().run(action, ctx))
"""
    job = toy_job("--steps", "100000")
    await job.start(0, {})
    for attempt, delay_s in enumerate((0.0, 0.02, 0.05, 0.1, 0.2, 0.4)):
        act, ctx = action(Verb.RESTART, attempt), context(job)
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdin.write(pickle.dumps((act, ctx)))
            other.stdin.close()
            await asyncio.to_thread(other.stdout.readline)
            await asyncio.sleep(delay_s)
            other.kill()
        looked = await RESTART.resolve(act, ctx)
        if looked.outcome is Outcome.UNKNOWN:
            assert looked.data["repeatable"] is True
            looked = await RESTART.run(act, ctx)
        assert looked.outcome is Outcome.DONE, looked
        assert looked.data["new_attempt"] == attempt + 1
        assert job.latest_attempt() == attempt + 1
        assert job.processes(attempt) == []
        assert job.state(attempt + 1).phase is AttemptPhase.RUNNING
    await job.stop(6, 0)


@pytest.mark.parametrize("why", ["cancelled", "finished", "later attempt", "stale", "watched only"])
async def test_no_restart_where_none_is_due(
    why: str, toy_job: MakeJob, action: MakeAction, context: MakeContext
) -> None:
    """Each reason is told in the receipt, and nothing is started."""
    job = toy_job("--steps", "1")
    act, ctx = action(Verb.RESTART), context(job)
    await job.start(0, {})
    if why == "finished":
        await ended(job, 0)
    elif why == "cancelled":
        job.mark_cancelled("its user (Ctrl-C)")
    elif why == "later attempt":
        await job.start(1, {})
    elif why == "stale":
        act = action(Verb.RESTART, not_after_s=time.time() - 5)
    else:
        ctx = context(None)
    before = job.latest_attempt()
    receipt = await RESTART.run(act, ctx)
    assert receipt.outcome is Outcome.SKIPPED
    assert {"cancelled": "Ctrl-C", "finished": "finished", "later attempt": "attempt 1", "stale": "stale"}.get(
        why, "only be watched"
    ) in receipt.detail
    assert job.latest_attempt() == before


async def test_checkpoints_without_a_good_one_keep_the_job_from_starting_over(
    toy_job: MakeJob, action: MakeAction, context: MakeContext, tmp_path: Path
) -> None:
    """Step 0 must be asked for where there is something to lose; the running job is left alone meanwhile."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-000500.safetensors").write_bytes(b"cut")
    job = toy_job("--steps", "100000")
    ctx = context(job, checkpoint_paths=(tmp_path / "ckpt",))
    await job.start(0, {"JOBWATCHDOG_RESUME_FROM": ""})
    await printed(job, 0, "iter 2:")
    receipt = await RESTART.run(action(Verb.RESTART), ctx)
    assert receipt.outcome is Outcome.FAILED
    assert "scratch" in receipt.detail
    assert "step-000500" in receipt.detail
    assert job.processes(0)
    told = await RESTART.run(action(Verb.RESTART, args={"from": "scratch"}), ctx, dry_run=True)
    assert "from scratch" in told.detail
    assert told.outcome is Outcome.SKIPPED
    receipt = await RESTART.run(action(Verb.RESTART, args={"from": "scratch", "env": {"X": "1"}}), ctx)
    assert receipt.outcome is Outcome.DONE
    assert receipt.data["overrides"] == {"X": "1"}
    await printed(job, 1, "iter 1:")


# ---- jobs that were running before ------------------------------------------------------------------


async def test_attached_process_is_restarted_in_its_place(
    launcher: LocalLauncher, action: MakeAction, context: MakeContext, tmp_path: Path
) -> None:
    """Same command, environment, folder and output file; a child in another session is ended with it."""
    code = (
        "import os,time; print(os.environ['COLOUR'], os.getcwd(), flush=True);"
        "os.system('setsid sleep 77 & wait'); time.sleep(60)"
    )
    log = tmp_path / "train.log"
    env = {**os.environ, "COLOUR": "green"}
    with (
        log.open("w") as out,
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env, stdout=out, stderr=out) as foreign,
    ):
        while "green" not in log.read_text():
            await asyncio.sleep(0.02)
        job = PidJob.attach(launcher, foreign.pid)
        async with asyncio.timeout(10):
            while len(job.processes(0)) < 2:
                await asyncio.sleep(0.02)
        members = job.processes(0)
        ctx = context(job, checkpoint_paths=())
        act = action(Verb.RESTART)
        receipt = await RESTART.run(act, ctx)
        assert receipt.outcome is Outcome.DONE, receipt.detail
        assert all((p := proctable.read(m.pid)) is None or not p.alive for m in members)
        assert foreign.wait() == -signal.SIGTERM
    async with asyncio.timeout(10):
        while log.read_text().count("green") < 2:
            await asyncio.sleep(0.02)
    assert log.read_text() == f"green {tmp_path}\n" * 2
    assert job.state(1).phase is AttemptPhase.RUNNING
    assert (await job.stop(1, 0)).clean


async def test_attach_refuses_what_it_must_not_touch(launcher: LocalLauncher) -> None:
    """Itself, its parents, the dead, and the kernel."""
    with pytest.raises(AttachError, match="end itself"):
        PidJob.attach(launcher, os.getpid())
    with pytest.raises(AttachError, match="end itself"):
        PidJob.attach(launcher, os.getppid())
    with pytest.raises(AttachError, match="no process"):
        PidJob.attach(launcher, 4_194_303)
    kernel = [p.pid for p in proctable.table().values() if p.ppid == 2]
    for pid in kernel[:1]:
        with pytest.raises(AttachError, match="kernel thread"):
            PidJob.attach(launcher, pid)


async def test_a_pid_given_to_another_process_is_not_ours(launcher: LocalLauncher) -> None:
    """Pid and start ticks name a process together."""
    with subprocess.Popen(["sleep", "60"]) as foreign:
        job = PidJob.attach(launcher, foreign.pid)
        foreign.kill()
        foreign.wait()
        assert job.state(0).phase is AttemptPhase.EXITED
        assert job.processes(0) == []


async def test_a_foreign_users_process_is_never_restarted(launcher: LocalLauncher) -> None:
    """Its owner would change."""
    with subprocess.Popen(["sleep", "60"]) as foreign:
        job = PidJob.attach(launcher, foreign.pid)
        job._uid = 12345
        assert "12345" in (job.cannot_restart() or "")
        foreign.kill()


def test_records_are_whole_or_absent(tmp_path: Path) -> None:
    """Written beside, then renamed."""
    write_json(tmp_path / "a" / "b.json", {"x": 1})
    assert json.loads((tmp_path / "a" / "b.json").read_text()) == {"x": 1}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.json"]
