"""The loop around the engine, on a real job: what happens when the ledger, the table of processes or a key fails."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobwatchdog.cli.console import policy_texts
from jobwatchdog.ledger import Ledger, LedgerError
from jobwatchdog.model import Action, ActionId, IncidentId, Outcome, PastAction, PlanId, Verb
from jobwatchdog.shell import supervisor
from jobwatchdog.shell.spec import WatchSpec
from jobwatchdog.shell.watch import Watch

LIMIT_S = 60.0


def spec(folder: Path, fault: str = "kill", steps: int = 40, fault_step: int = 17) -> WatchSpec:
    """Two ranks without PyTorch."""
    command = (
        sys.executable, "-m", "jobwatchdog.testing.toy_train", "--nproc", "2", "--steps", str(steps), "--step-s",
        "0.05",
        "--ckpt-every", "5", "--ckpt-dir", str(folder / "ckpt"), "--fault", fault, "--fault-step", str(fault_step),
        "--backend", "plain",
    )  # fmt: skip
    env = {name: value for name, value in os.environ.items() if not name.startswith("JOBWATCHDOG_")}
    return WatchSpec(
        name="toy", state_dir=str(folder / "state"), command=command, cwd=str(folder), env=env,
        policies=tuple(policy_texts(["local/enforce"])), checkpoints=(str(folder / "ckpt"),),
    )  # fmt: skip


async def to_the_end(watch: Watch) -> int:
    """Wait until the job has ended for good."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        *_, code, _ = await watch.updates(0)
        if code is not None:
            return code
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def attached(wanted: WatchSpec) -> tuple[asyncio.subprocess.Process, Watch]:
    """Start the job by hand, and watch it by its pid."""
    process = await asyncio.create_subprocess_exec(
        *wanted.command, cwd=wanted.cwd, env=dict(wanted.env), stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    watch = Watch(replace(wanted, name=f"pid-{process.pid}", command=(), pid=process.pid))
    await watch.start()
    return process, watch


def starts(folder: Path) -> int:
    """Rank processes that were ever started."""
    return len((folder / "ckpt" / ".starts").read_text().splitlines())


@pytest.mark.parametrize("method", ["record", "intend", "receipt"])
async def test_a_ledger_that_fails_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Nothing is forgotten and nothing done twice: the act comes after its intent, however late."""
    monkeypatch.setattr(supervisor, "LEDGER_RETRY_S", 0.05)
    good: Callable[..., Awaitable[Any]] = getattr(Ledger, method)
    calls = 0

    async def flaky(self: Ledger, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise LedgerError("the disk is full")
        return await good(self, *args, **kwargs)

    monkeypatch.setattr(Ledger, method, flaky)
    watch = Watch(spec(tmp_path))
    await watch.start()
    try:
        assert await to_the_end(watch) == 0
    finally:
        await watch.close()
    assert calls >= 3
    assert starts(tmp_path) == 4


async def test_an_intent_that_was_kept_without_our_knowing_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database committed, and the connection broke before it could say so."""
    monkeypatch.setattr(supervisor, "LEDGER_RETRY_S", 0.05)
    good = Ledger.intend
    broken: set[str] = set()

    async def committed_but(self: Ledger, action: Action, **kwargs: Any) -> bool:
        kept = await good(self, action, **kwargs)
        if action.key not in broken:
            broken.add(action.key)
            raise LedgerError("the connection is lost")
        return kept

    monkeypatch.setattr(Ledger, "intend", committed_but)
    watch = Watch(spec(tmp_path))
    await watch.start()
    try:
        assert await to_the_end(watch) == 0
    finally:
        await watch.close()
    assert starts(tmp_path) == 4
    assert "restart:toy:0" in broken


async def test_a_key_that_another_action_holds_is_not_acted_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has restarted this attempt already, as far as the ledger knows: once is once."""
    watch = Watch(spec(tmp_path, steps=400))
    await watch.start()
    other = Action(
        id=ActionId("other"), key="restart:toy:0", verb=Verb.RESTART, job=watch.job_id, attempt=0,
        incident=IncidentId("i"), plan=PlanId("p"),
    )  # fmt: skip
    try:
        ledger = watch._ledger
        assert ledger is not None
        assert await ledger.intend(other)
        deadline = time.monotonic() + LIMIT_S
        log = tmp_path / "state" / "jobs" / "toy" / "ledger.db"
        while not [p for p in await ledger.history() if p.action.verb is Verb.COLLECT and p.outcome is Outcome.DONE]:
            assert time.monotonic() < deadline, log
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        restarts: list[PastAction] = [p for p in await ledger.history() if p.action.verb is Verb.RESTART]
        assert [p.action.id for p in restarts] == ["other"]
        assert starts(tmp_path) == 2
    finally:
        await watch.kill_job()
        await watch.close()


async def test_no_descriptors_left_is_no_sign_of_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog runs out of descriptors for a second while the job is healthy: told, and nothing is done."""
    watch = Watch(spec(tmp_path, fault="none", steps=80))
    await watch.start()
    blind = False
    read = os.open

    def starved(path: Any, *args: Any, **kwargs: Any) -> int:
        if blind and str(path).startswith("/proc/"):
            raise OSError(24, "Too many open files")
        return read(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", starved)
    try:
        out = tmp_path / "state" / "jobs" / "toy" / "attempt-0" / "stdout.log"
        deadline = time.monotonic() + LIMIT_S
        while "iter 10:" not in out.read_text():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        blind = True
        await asyncio.sleep(1.5)
        blind = False
        assert await to_the_end(watch) == 0
        assert starts(tmp_path) == 2
        assert await watch._ledger.history() == []  # type: ignore[union-attr]
    finally:
        await watch.close()


async def test_the_last_words_of_an_attempt_are_its_own(tmp_path: Path) -> None:
    """Each incident belongs to the attempt that it struck, though the logs are read later than the restart is done."""
    watch = Watch(spec(tmp_path, fault="nan"))
    await watch.start()
    try:
        assert await to_the_end(watch) == 0
        assert watch._ledger is not None
        incidents = await watch._ledger.incidents()
    finally:
        await watch.close()
    assert [(i.kind.value, i.attempt) for i in incidents] == [("loss_nan", 0)]


async def test_an_attached_job_on_an_older_kernel_is_restarted_when_a_rank_was_seen_to_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.15 only its parent learns how the job ended; that a rank was killed is seen all the same."""
    from jobwatchdog.actuators.local import control

    monkeypatch.setattr(control, "how_it_ended", lambda *_: None)
    wanted = spec(tmp_path, steps=80, fault_step=50)
    process, watch = await attached(wanted)
    try:
        await process.wait()
        assert await to_the_end(watch) == 0
        assert starts(tmp_path) == 4
    finally:
        await watch.close()


async def test_an_attached_job_of_which_nobody_knows_how_it_ended_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have finished: unknown is no reason to start anything."""
    from jobwatchdog.actuators.local import control

    monkeypatch.setattr(control, "how_it_ended", lambda *_: None)
    wanted = spec(tmp_path, fault="none", steps=60)
    process, watch = await attached(wanted)
    try:
        assert await process.wait() == 0
        await to_the_end(watch)
        assert starts(tmp_path) == 2
    finally:
        await watch.close()
