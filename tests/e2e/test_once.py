"""The watchdog dies at the worst moments: the job is restarted once, not twice and not never."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from jobwatchdog.ledger import Reader
from jobwatchdog.model import Outcome, Verb

if TYPE_CHECKING:
    from tests.e2e.conftest import Toy

POINTS = ["before_intent", "after_intent", "after_act", "before_receipt", "after_receipt"]


async def _restarts(toy: Toy) -> list[Outcome | None]:
    async with await Reader.open(f"sqlite+aiosqlite:///{toy.job_folder}/ledger.db") as reader:
        return [past.outcome for past in await reader.history() if past.action.verb is Verb.RESTART]


@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_a_crash_point_the_next_watchdog_finishes_the_work_once(toy: Toy, point: str) -> None:
    """`run` with the same name finds the job, the ledger, and what was left undone."""
    first = toy.watch("kill", JOBWATCHDOG_CRASH_AT=point)
    assert toy.ends(first) == -signal.SIGKILL
    assert toy.finish("kill") == 0, toy.said
    assert toy.starts() == 4
    assert f"training finished after step {toy.steps}" in toy.output(1)
    assert [one for one in await _restarts(toy) if one is Outcome.DONE] == [Outcome.DONE]


async def test_a_watchdog_that_is_killed_again_and_again_still_restores_once(toy: Toy) -> None:
    """Each life dies at another point of the same remedy."""
    for point in POINTS:
        toy.ends(toy.watch("kill", JOBWATCHDOG_CRASH_AT=point))
    assert toy.finish("kill") == 0, toy.said
    assert toy.starts() == 4
    assert [one for one in await _restarts(toy) if one is Outcome.DONE] == [Outcome.DONE]


async def test_a_healthy_job_outlives_its_watchdog_and_is_found_again(toy: Toy) -> None:
    """Nothing is restarted; the fault that comes later is seen by the new watchdog."""
    toy.steps, toy.fault_step = 80, 60
    first = toy.watch("kill")
    toy.wait_step(10)
    first.kill()
    first.communicate()
    toy.wait_step(20)
    second = toy.watch("kill")
    toy.wait_step(40)
    assert toy.starts() == 2
    second.kill()
    second.communicate()
    assert toy.finish("kill") == 0, toy.said
    assert toy.starts() == 4
    assert await _restarts(toy) == [Outcome.DONE]


def test_a_fault_while_nobody_watched_is_healed_by_the_next_watchdog(toy: Toy) -> None:
    """The job broke between two lives of the watchdog."""
    first = toy.watch("kill")
    toy.wait_step(5)
    first.kill()
    first.communicate()
    toy.wait_for("the end of the job", lambda: not toy.living())
    assert toy.finish("kill") == 0, toy.said
    assert toy.starts() == 4


def test_two_watchdogs_on_one_job_act_once(toy: Toy) -> None:
    """The second takes over; the first is told and ends, the job goes on."""
    toy.steps, toy.fault_step = 60, 40
    first = toy.watch("kill")
    toy.wait_step(5)
    second = toy.watch("kill")
    assert toy.ends(second) == 0, toy.said
    toy.ends(first)
    assert toy.starts() == 4


def test_ctrl_c_ends_the_job_and_is_no_incident(toy: Toy) -> None:
    """Exit code 130, nothing is restarted, now or by a later watchdog."""
    first = toy.watch("none")
    toy.wait_step(10)
    first.send_signal(signal.SIGINT)
    assert toy.ends(first) == 130, toy.said
    assert toy.incidents() == []
    assert toy.ordered() == []
    assert toy.living() == []
    assert toy.finish("none") == 130
    assert toy.starts() == 2
    assert "Traceback" not in toy.said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_job_that_its_user_ends_by_hand_stays_ended(toy: Toy, number: signal.Signals, code: int) -> None:
    """`kill PID` from another terminal: no incident, no restart."""
    watch = toy.watch("none")
    toy.wait_step(10)
    os.kill(toy.root(), number)
    assert toy.ends(watch) == code, toy.said
    assert toy.ordered() == []
    assert toy.incidents() == []
    assert toy.starts() == 2
    assert toy.living() == []


@pytest.mark.torch
def test_torchrun_that_is_asked_to_end_stays_ended(torch_toy: Toy) -> None:
    """It ends with code 1 and a traceback; the signal that it names is its user's word."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    module = torch_toy.command("none")[1:3]
    options = torch_toy.command("none")[5:]  # without --nproc: torchrun starts the ranks
    watch = torch_toy.start("run", "--name", "toy", "--runtime", "plain", "--format", "json", "--policy",
                            "local/enforce", "--", *torchrun, *module, *options)  # fmt: skip
    torch_toy.wait_step(5)
    os.kill(torch_toy.root(), signal.SIGTERM)
    assert torch_toy.ends(watch) == 1, torch_toy.said
    assert torch_toy.ordered() == []
    assert torch_toy.starts() == 2


def test_a_launcher_that_is_killed_leaves_no_rank_behind(toy: Toy) -> None:
    """Its orphans train on; they are ended before the next attempt starts, and no two attempts write at once."""
    toy.steps = 60
    watch = toy.watch("none")
    toy.wait_step(10)
    os.kill(toy.root(), signal.SIGKILL)
    assert toy.ends(watch) == 0, toy.said
    assert toy.ordered(Verb.RESTART) == ["restart:toy:0"]
    assert toy.starts() == 4
    assert toy.living() == []


def test_sigterm_to_the_watchdog_leaves_the_job_running(toy: Toy) -> None:
    """A service manager that stops us does not stop the training."""
    first = toy.watch("none")
    toy.wait_step(10)
    first.send_signal(signal.SIGTERM)
    toy.ends(first)
    assert len(toy.living()) >= 2
    assert toy.finish("none") == 0
    assert toy.starts() == 2
    assert f"training finished after step {toy.steps}" in toy.output(0)


@pytest.mark.ray
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_supervisor_actor_that_dies_or_freezes_is_replaced(toy: Toy, number: signal.Signals) -> None:
    """On an embedded Ray: the job runs on, and the fault that follows is healed once."""
    toy.steps, toy.step_s, toy.fault_step = 170, 0.2, 150
    watch = toy.watch("kill", runtime="ray")
    toy.wait_step(5)
    actor = next(
        child for child in psutil.Process(watch.pid).children(recursive=True) if "SupervisorActor" in child.name()
        or "SupervisorActor" in " ".join(child.cmdline())
    )  # fmt: skip
    actor.send_signal(number)
    toy.wait_for("the replacement", lambda: "keeper.supervisor_replaced" in _log(toy), 60)
    assert toy.ends(watch) == 0, toy.said
    assert toy.starts() == 4
    assert await _restarts(toy) == [Outcome.DONE]


def _log(toy: Toy) -> str:
    path = toy.job_folder / "watchdog.log"
    return path.read_text() if path.exists() else ""


def test_a_ledger_elsewhere_is_found_again_and_never_shared(toy: Toy) -> None:
    """By URL; the job's folder remembers it, so that `status` and the next watchdog need not be told."""
    toy.steps = 30
    elsewhere = f"sqlite:///{toy.folder}/elsewhere/ledger.db"
    assert toy.finish("kill", "--ledger", elsewhere) == 0, toy.said
    assert (toy.folder / "elsewhere" / "ledger.db").exists()
    assert not (toy.job_folder / "ledger.db").exists()
    shown = toy.start("status", "--format", "json")
    out, _ = shown.communicate(timeout=30)
    assert [row["incidents"] for row in json.loads(out)] == [1]
    toy.name = "another"
    assert toy.finish("none", "--ledger", elsewhere) != 0
    assert "is that of toy: each job needs one of its own" in " ".join(toy.said.split())
    assert "Traceback" not in toy.said


def test_a_job_that_is_over_is_not_started_again(toy: Toy) -> None:
    """The same name later: said, with the code that it ended with."""
    toy.steps = 12
    assert toy.finish("none") == 0
    assert toy.finish("none") == 0
    assert toy.starts() == 2
    assert "has finished with exit code 0 in attempt 0" in " ".join(toy.said.split())
