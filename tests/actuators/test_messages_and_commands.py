"""notify, exec, signal, stop, hold and the verbs that are out of reach, against real servers and processes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from jobwatchdog.actuators import registry
from jobwatchdog.actuators.base import ActionContext
from jobwatchdog.actuators.local.control import LocalJob
from jobwatchdog.actuators.local.records import AttemptPhase
from jobwatchdog.actuators.local.restart import RestartActuator
from jobwatchdog.model import Action, Outcome, Verb

MakeJob = Callable[..., LocalJob]
MakeAction = Callable[..., Action]
MakeContext = Callable[..., ActionContext]
ACTUATORS = registry.build("local")


@dataclass
class Hook:
    """A webhook that answers what it is told to, and keeps what it got."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


@pytest_asyncio.fixture
async def hook() -> AsyncIterator[Hook]:
    """A real server on a free port."""
    made = Hook()

    async def receive(request: web.Request) -> web.Response:
        made.got.append(await request.json())
        made.keys.append(request.headers["Idempotency-Key"])
        return web.Response(status=made.answers.pop(0) if made.answers else 200, text="said the server")

    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield made
    await runner.cleanup()


async def test_webhook_gets_the_incident_once_it_can_take_it(
    hook: Hook, action: MakeAction, context: MakeContext
) -> None:
    """Two failures of the server are retried; the body has a text for people and fields for machines."""
    hook.answers = [503, 429]
    ctx = context(endpoints={"oncall": hook.url})
    receipt = await ACTUATORS[Verb.NOTIFY].run(action(Verb.NOTIFY, args={"to": "oncall", "severity": "critical"}), ctx)
    assert receipt.outcome is Outcome.DONE, receipt.detail
    assert len(hook.got) == 3
    assert set(hook.keys) == {"notify-0"}
    assert hook.got[-1]["text"] == "[critical] toy: rank_crash: rank 1 is gone, suspects: node-7, node-9, rank 1"
    assert hook.got[-1]["kind"] == "rank_crash"


async def test_webhook_that_refuses_is_not_asked_again(hook: Hook, action: MakeAction, context: MakeContext) -> None:
    """A 4xx will not get better."""
    hook.answers = [403]
    receipt = await ACTUATORS[Verb.NOTIFY].run(action(Verb.NOTIFY, args={"to": hook.url}), context())
    assert receipt.outcome is Outcome.FAILED
    assert "403 said the server" in receipt.detail
    assert len(hook.got) == 1


async def test_nobody_to_tell_is_said_and_does_not_end_the_plan(action: MakeAction, context: MakeContext) -> None:
    """A policy may name a receiver that this site has not configured; unreachable ones are a failure."""
    receipt = await ACTUATORS[Verb.NOTIFY].run(action(Verb.NOTIFY, args={"to": "oncall"}), context())
    assert (receipt.outcome, receipt.data["delivered"]) == (Outcome.DONE, [])
    assert "oncall" in receipt.detail
    receipt = await ACTUATORS[Verb.ASK].run(action(Verb.ASK, args={"to": "http://127.0.0.1:1/"}), context())
    assert receipt.outcome is Outcome.FAILED
    assert "cannot be reached" in receipt.detail


async def test_command_reads_the_message_on_stdin(action: MakeAction, context: MakeContext, tmp_path: Path) -> None:
    """From the policy as a list, or from the configuration as a line."""
    ctx = context(endpoints={"file": f"tee {tmp_path}/by-name"})
    assert (await ACTUATORS[Verb.NOTIFY].run(action(Verb.NOTIFY, args={"to": "file"}), ctx)).outcome is Outcome.DONE
    by_list = action(Verb.NOTIFY, args={"command": ["tee", f"{tmp_path}/by-list"]})
    assert (await ACTUATORS[Verb.NOTIFY].run(by_list, ctx)).outcome is Outcome.DONE
    for name in ("by-name", "by-list"):
        assert json.loads((tmp_path / name).read_text())["ranks"] == [1]


async def test_exec_runs_a_list_once_with_the_facts(action: MakeAction, context: MakeContext, tmp_path: Path) -> None:
    """Never a shell; asked again with the same action, it does nothing."""
    code = (
        f"import os,sys; open('{tmp_path}/ran','a').write(os.environ['JOBWATCHDOG_NODES'] + sys.argv[1]); print('ok')"
    )
    act = action(Verb.EXEC, args={"command": [sys.executable, "-c", code, "$HOME; rm -rf x"]})
    actuator, ctx = ACTUATORS[Verb.EXEC], context()
    assert (await actuator.resolve(act, ctx)).data["repeatable"] is True
    receipt = await actuator.run(act, ctx)
    assert (receipt.outcome, receipt.data["output"]) == (Outcome.DONE, "ok\n")
    assert (await actuator.run(act, ctx)).outcome is Outcome.SKIPPED
    assert (tmp_path / "ran").read_text() == "node-7,node-9$HOME; rm -rf x"
    assert (await actuator.resolve(act, ctx)).data["repeatable"] is False


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("rm -rf /", "list of strings"),
        (["no-such-program"], "cannot be run"),
        (["false"], "exit code 1"),
        (["sh", "-c", "yes & sleep 60"], "longer than 0.3 s"),
    ],
)
async def test_exec_that_goes_wrong_says_how(
    command: object, said: str, action: MakeAction, context: MakeContext
) -> None:
    """Bounded in time and in output, with what it left in the background."""
    receipt = await ACTUATORS[Verb.EXEC].run(action(Verb.EXEC, args={"command": command, "timeout_s": 0.3}), context())
    assert receipt.outcome in (Outcome.FAILED, Outcome.SKIPPED)
    assert said in receipt.detail
    assert len(str(receipt.data.get("output", ""))) <= 64 << 10


async def test_signal_reaches_the_suspected_rank_alone(
    toy_job: MakeJob, action: MakeAction, context: MakeContext
) -> None:
    """By the pids that the shell knows; a rank of unknown pid is nobody."""
    job = toy_job("--steps", "100000")
    await job.start(0, {})
    async with asyncio.timeout(20):
        while len(job.processes(0)) < 3:
            await asyncio.sleep(0.02)
    victim = job.processes(0)[-1].pid
    ctx = context(job, rank_pids={1: victim})
    receipt = await ACTUATORS[Verb.SIGNAL].run(action(Verb.SIGNAL, args={"signal": "USR1", "ranks": [1]}), ctx)
    assert (receipt.outcome, receipt.data["pids"]) == (Outcome.DONE, [victim])
    wrong = await ACTUATORS[Verb.SIGNAL].precondition(action(Verb.SIGNAL, args={"signal": "SIGFOO"}), ctx)
    assert wrong == "no such signal: SIGFOO"


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.HOLD])
async def test_a_stopped_job_stays_stopped(
    verb: Verb, toy_job: MakeJob, action: MakeAction, context: MakeContext
) -> None:
    """Its end is ours, so no failure; a restart afterwards is refused."""
    job = toy_job("--steps", "100000")
    await job.start(0, {})
    told = await ACTUATORS[verb].run(action(verb), context(job), dry_run=True)
    assert told.detail.startswith("dry run: would end")
    assert (await ACTUATORS[verb].run(action(verb), context(job))).outcome is Outcome.DONE
    assert job.processes(0) == []
    attempt = job.launcher.adopt(job.spec.job)
    assert attempt is not None
    assert (await job.launcher.wait(attempt)).phase is AttemptPhase.EXITED
    receipt = await RestartActuator().run(action(Verb.RESTART), context(job))
    assert receipt.outcome is Outcome.SKIPPED
    assert "p1" in receipt.detail


async def test_verbs_out_of_reach_say_what_they_need(action: MakeAction, context: MakeContext) -> None:
    """Every verb has an actuator, whatever the launcher."""
    for launcher in ("local", "log", "elsewhere"):
        assert set(registry.build(launcher)) == set(Verb)
    receipt = await ACTUATORS[Verb.DRAIN].run(action(Verb.DRAIN, args={"nodes": ["a"]}), context())
    assert receipt.outcome is Outcome.FAILED
    assert receipt.detail == "drain needs a launcher with nodes, such as Slurm; this job is of launcher 'local'"


async def test_collect_shows_where_each_rank_stands(
    toy_job: MakeJob, action: MakeAction, context: MakeContext, tmp_path: Path
) -> None:
    """Also of a stopped rank, and a process that is gone is a line in the receipt, not a failure."""
    job = toy_job("--fault", "stop", "--fault-step", "3", "--steps", "100000")
    await job.start(0, {})
    async with asyncio.timeout(20):
        while not any(p.stopped for p in job.processes(0)):
            await asyncio.sleep(0.02)
    stopped = next(p.pid for p in job.processes(0) if p.stopped)
    (tmp_path / "a.log").write_text("last words\n")
    ctx = context(job, rank_pids={1: stopped, 7: 4_194_303}, log_files=(tmp_path / "a.log", tmp_path / "gone"))
    receipt = await ACTUATORS[Verb.COLLECT].run(action(Verb.COLLECT, args={"stacks": True}), ctx)
    assert receipt.outcome is Outcome.DONE
    stacks = receipt.data["stacks"]
    assert isinstance(stacks, dict)
    if "rank1" in stacks:  # needs the right to read another process
        assert "_break" in str(stacks["rank1"])
    else:
        assert "stack of rank1" in receipt.detail
    assert "stack of rank7" in receipt.detail
    bundle = Path(str(receipt.data["bundle"]))
    assert (bundle / "log-0-a.log").read_text() == "last words\n"
    assert f"{stopped} " in (bundle / "processes.txt").read_text()
    assert job.launcher.signal(job.spec.job, 0, signal.SIGCONT)
