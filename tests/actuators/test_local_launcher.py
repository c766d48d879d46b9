"""The launcher with real processes: toys that ignore signals, stop, or try to run away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from jobwatchdog.actuators.local.launcher import SHIM, LaunchError, LocalLauncher
from jobwatchdog.actuators.local.records import Attempt, AttemptPhase, JobSpec
from jobwatchdog.linux import proctable
from jobwatchdog.model import JobId

JOB = JobId("local/toy:1")


@pytest_asyncio.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LocalLauncher]:
    """Leaves no process behind."""
    made = LocalLauncher(tmp_path / "state")
    yield made
    for spec in made.jobs():
        for attempt in range(4):
            await made.stop(spec.job, attempt, grace_s=0)


def toy(tmp_path: Path, code: str, **env: str) -> JobSpec:
    """A job that runs a line of Python, quickly started."""
    return JobSpec(
        job=JOB, command=(sys.executable, "-I", "-S", "-c", code), cwd=str(tmp_path), env={**os.environ, **env}
    )


async def said(attempt: Attempt, text: str) -> str:
    """Waits until the job printed the text."""
    async with asyncio.timeout(20):
        while text not in (out := attempt.stdout.read_text()):
            await asyncio.sleep(0.01)
    return out


async def test_exit_code_output_and_environment_are_kept(launcher: LocalLauncher, tmp_path: Path) -> None:
    """The records of a short job: exit code, both streams, and the variables that it was promised."""
    spec = toy(
        tmp_path,
        "import os,sys; print(sorted(k for k in os.environ if 'JOBWATCHDOG' in k or 'RDZV' in k));"
        "print(os.environ['X'], os.getcwd(), file=sys.stderr); sys.exit(7)",
        JOBWATCHDOG_RESUME_FROM="/from/an/outer/job",
    )
    attempt = await launcher.start(spec, 0, {"X": "override"})
    state = await launcher.wait(attempt)
    assert (state.phase, state.code, state.signal) == (AttemptPhase.EXITED, 7, None)
    assert attempt.stdout.read_text().split("'")[1::2] == [
        "JOBWATCHDOG_ATTEMPT", "JOBWATCHDOG_ATTEMPT_DIR", "JOBWATCHDOG_JOB", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    ]  # fmt: skip
    assert attempt.stderr.read_text() == f"override {tmp_path}\n"


async def test_second_start_of_an_attempt_changes_nothing(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Asked ten times at once, the command runs once, and all callers learn of the same process."""
    spec = toy(tmp_path, "import os; open('ran','a').write('x'); import time; time.sleep(30)")
    attempts = await asyncio.gather(*(launcher.start(spec, 1) for _ in range(10)))
    assert len({(a.pid, a.ticks) for a in attempts}) == 1
    assert sum(a.started_here for a in attempts) == 1
    await asyncio.sleep(0.2)
    assert (tmp_path / "ran").read_text() == "x"


async def test_a_claim_whose_shim_died_before_the_start_may_be_taken_over_once(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Without start.json the command never ran: the next start is the first."""
    spec = toy(tmp_path, "open('ran','a').write('x')")
    dead = subprocess.run(["true"], check=True)
    folder = launcher.attempt_folder(JOB, 1)
    folder.mkdir(parents=True)
    (folder / "claim").write_text(f'{{"pid": 4194000, "ticks": {dead.returncode}, "boot": "{proctable.boot_id()}"}}')
    assert launcher.state(JOB, 1).phase is AttemptPhase.ABANDONED
    attempts = await asyncio.gather(*(launcher.start(spec, 1) for _ in range(5)))
    assert sum(a.started_here for a in attempts) == 1
    await launcher.wait(attempts[0])
    assert (tmp_path / "ran").read_text() == "x"


async def test_stop_ends_runaways_and_the_stubborn(launcher: LocalLauncher, tmp_path: Path) -> None:
    """One child ignores SIGTERM, one is stopped, one has double-forked into a session of its own."""
    code = """
import os, signal, time
def child(what):
    if os.fork() == 0:
        what(); print('ready', flush=True)
        time.sleep(60); os._exit(0)
def runaway():
    os.setsid()
    if os.fork(): os._exit(0)
    os.setsid()
child(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
child(runaway)
if (pid := os.fork()) == 0: time.sleep(60)
os.kill(pid, signal.SIGSTOP)
print('stopped', flush=True); time.sleep(60)
"""
    attempt = await launcher.start(toy(tmp_path, code), 0)
    while (await said(attempt, "stopped")).count("ready") < 2:
        await asyncio.sleep(0.01)
    before = launcher.processes(JOB, 0)
    assert len(before) == 4
    report = await launcher.stop(JOB, 0, grace_s=0.3)
    assert report.clean
    assert report.killed >= 2
    assert report.took_s < 2
    assert all((p := proctable.read(b.pid)) is None or not p.alive or p.ticks != b.ticks for b in before)
    state = await launcher.wait(attempt)
    assert state.signal == signal.SIGTERM


async def test_stopped_processes_are_ended_without_waiting(launcher: LocalLauncher, tmp_path: Path) -> None:
    """SIGTERM cannot reach them, so the grace would be lost time."""
    attempt = await launcher.start(toy(tmp_path, "import os,signal; os.kill(os.getpid(), signal.SIGSTOP)"), 0)
    while not all(p.stopped for p in launcher.processes(JOB, 0)):
        await asyncio.sleep(0.01)
    report = await launcher.stop(JOB, 0, grace_s=30)
    assert report.took_s < 1
    assert (await launcher.wait(attempt)).signal == signal.SIGKILL


async def test_the_job_outlives_the_one_who_started_it(launcher: LocalLauncher, tmp_path: Path) -> None:
    """SIGKILL of the watchdog leaves the job, its exit code, and a way to find both."""
    script = f"""
import asyncio, sys, os, signal
from pathlib import Path
from jobwatchdog.actuators.local.launcher import LocalLauncher
from jobwatchdog.actuators.local.records import JobSpec
spec = JobSpec(job="{JOB}", command=("sh", "-c", "sleep 0.5; exit 5"), cwd="/", env=dict(os.environ))
asyncio.run(LocalLauncher(Path("{launcher.state_dir}")).start(spec, 0))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    attempt = launcher.adopt(JOB)
    assert attempt is not None
    assert launcher.state(JOB, 0).phase is AttemptPhase.RUNNING
    assert (await launcher.wait(attempt)).code == 5
    assert launcher.jobs()[0].command == ("sh", "-c", "sleep 0.5; exit 5")


async def test_a_killed_shim_gives_an_end_without_a_code(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Nobody saw the end: it is told as ended, with neither code nor signal."""
    attempt = await launcher.start(toy(tmp_path, "import time; time.sleep(60)"), 0)
    os.kill(attempt.shim_pid, signal.SIGKILL)
    assert launcher.state(JOB, 0).phase is AttemptPhase.RUNNING
    assert (await launcher.stop(JOB, 0)).clean
    state = await launcher.wait(attempt)
    assert (state.phase, state.code, state.signal) == (AttemptPhase.EXITED, None, None)


async def test_a_command_that_cannot_run_says_so(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Exit code 127 as a shell would give, with the name of what was missing."""
    spec = JobSpec(job=JOB, command=("no-such-program",), cwd=str(tmp_path), env={})
    state = await launcher.wait(await launcher.start(spec, 0))
    assert state.code == 127
    assert "no-such-program" in state.detail


async def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """No claim, no start."""
    spec = JobSpec(job=JOB, command=("true",), cwd=str(tmp_path), env={})
    launcher = LocalLauncher(tmp_path)
    launcher.attempt_folder(JOB, 0).parent.mkdir(parents=True)
    launcher.attempt_folder(JOB, 0).write_text("a file in the way")
    with pytest.raises((LaunchError, OSError), match="attempt-0"):
        await launcher.start(spec, 0)


def test_terminal_signals_do_not_reach_the_shim(tmp_path: Path) -> None:
    """Ctrl-C and a closed terminal are for the watchdog alone."""
    folder = tmp_path / "a"
    subprocess.run([sys.executable, "-I", "-S", str(SHIM), str(folder), "--", "sleep", "0.5"], check=True)
    pid = json.loads((folder / "claim").read_text())["pid"]
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGHUP)
    deadline = time.monotonic() + 10
    while not (folder / "exit.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert json.loads((folder / "exit.json").read_text())["code"] == 0


async def test_a_job_of_another_machine_is_neither_dead_nor_alive(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Home folders are shared between nodes; a process table is not."""
    attempt = await launcher.start(toy(tmp_path, "import time; time.sleep(60)"), 0)
    record = json.loads((attempt.folder / "start.json").read_text())
    try:
        away = record | {"boot": "another", "host": "node-2"}
        (attempt.folder / "start.json").write_text(json.dumps(away))
        assert launcher.state(JOB, 0).phase is AttemptPhase.UNSEEN
        (attempt.folder / "start.json").write_text(json.dumps(record | {"boot": "another"}))
        assert launcher.state(JOB, 0).phase is AttemptPhase.EXITED
    finally:
        (attempt.folder / "start.json").write_text(json.dumps(record))
