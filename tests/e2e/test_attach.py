"""Jobs that run already, policies that only look or ask, and a person's word."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobwatchdog.model import Kind, Verb

if TYPE_CHECKING:
    from tests.e2e.conftest import Toy


@pytest.fixture
def running(toy: Toy) -> Iterator[subprocess.Popen[bytes]]:
    """A job that somebody started by hand, its output in a file."""
    toy.steps, toy.fault_step = 80, 60  # time to attach
    toy.folder.joinpath("runs").mkdir()
    with (toy.folder / "runs" / "train.log").open("w") as log:
        process = subprocess.Popen(
            toy.command("kill"), cwd=toy.folder / "runs", stdout=log, stderr=log, start_new_session=True,
            env=toy.env(MARK="kept"),
        )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def _attach(toy: Toy, pid: int, policy: str | None = "local/enforce") -> subprocess.Popen[str]:
    chosen = ["--policy", policy] if policy else []
    return toy.start("attach", f"pid:{pid}", "--runtime", "plain", "--format", "json", *chosen, "--checkpoints",
                     str(toy.checkpoints))  # fmt: skip


def test_an_attached_pid_is_restarted_in_its_place(toy: Toy, running: subprocess.Popen[bytes]) -> None:
    """Same command, environment, folder and log file; ranks from the environment, logs from the descriptors."""
    log = toy.folder / "runs" / "train.log"
    toy.wait_for("the first steps", lambda: "iter 3:" in log.read_text())
    watch = _attach(toy, running.pid)
    running.wait(60)
    assert toy.ends(watch) == 0, toy.said
    (incident,) = toy.incidents()
    assert incident.kind is Kind.RANK_CRASH
    assert incident.suspects.ranks == (1,)
    assert toy.starts() == 4
    text = log.read_text()
    assert text.count("resumed from checkpoint") == 1
    assert "iter 3:" in text, "the file is appended to, not cut"
    assert f"training finished after step {toy.steps}" in text


def test_ctrl_c_ends_the_watching_of_an_attached_job_and_not_the_job(
    toy: Toy, running: subprocess.Popen[bytes]
) -> None:
    """It is not ours."""
    watch = _attach(toy, running.pid)
    toy.wait_for("the watch", lambda: list((toy.folder / "state" / "jobs").glob("*/ledger.db")))
    watch.send_signal(signal.SIGINT)
    assert toy.ends(watch) == 130
    assert running.poll() is None
    assert toy.starts() == 2


def test_what_cannot_be_attached_is_refused_in_words(toy: Toy) -> None:
    """No traceback; what would help."""
    for target, words in (
        ("pid:999999999", "no process 999999999 is running"),
        ("pid:x", "'x' is no process id"),
        (f"pid:{os.getpid()}", "would end itself"),
        ("job:nope", "no job 'nope'"),
        ("somewhere", "write pid:PID, log:PATH or job:NAME"),
        ("slurm:1", "not supported by this version"),
    ):
        watch = toy.start("attach", target, "--runtime", "plain")
        assert toy.ends(watch) == 2, target
        assert words in " ".join(toy.said.split()), target
        assert "Traceback" not in toy.said


def test_a_log_is_only_looked_at(toy: Toy, tmp_path: Path) -> None:
    """Whatever the policy says: there is nothing that could be restarted."""
    log = tmp_path / "rank0.log"
    log.write_text("iter 1: loss 2.0, time 100.00ms, mfu -100.00%\n")
    watch = toy.start("attach", f"log:{log}", "--runtime", "plain", "--format", "json", "--policy", "local/enforce")
    toy.wait_for("the watch", lambda: list((toy.folder / "state" / "jobs").glob("*/ledger.db")))
    with log.open("a") as out:
        out.write(
            "[rank0]:[E1130 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
            "600029 milliseconds before timing out.\n"
        )
    toy.wait_for("the incident", lambda: toy.read() and toy.incidents())
    watch.send_signal(signal.SIGINT)
    assert toy.ends(watch) == 130
    assert [i.kind for i in toy.incidents()] == [Kind.NCCL_TIMEOUT]
    assert toy.ordered(Verb.RESTART) == []


def test_observe_never_acts(toy: Toy) -> None:
    """The default policy says what broke and what it would do; the job's own exit code is passed on."""
    assert toy.finish("kill", policy=None) == 137, toy.said
    assert toy.incidents()
    assert toy.ordered() == []
    assert toy.starts() == 2


def test_a_plan_waits_for_a_persons_word(toy: Toy, tmp_path: Path) -> None:
    """`approve` by another process starts it."""
    policy = tmp_path / "ask.yaml"
    policy.write_text(ASK)
    watch = toy.watch("stop", policy=str(policy))
    toy.wait_for("the question", lambda: toy.read() and toy.wanted())
    assert toy.starts() == 2
    plan = toy.wanted()
    assert plan is not None
    typo = toy.start("approve", toy.name, "p-000000000000")
    assert toy.ends(typo) == 2
    assert f"asked so far: {plan}" in " ".join(toy.said.split())
    said = toy.start("approve", toy.name, plan)
    assert toy.ends(said) == 0, toy.said
    assert toy.ends(watch) == 0, toy.said
    assert toy.starts() == 4


def test_a_person_may_refuse(toy: Toy, tmp_path: Path) -> None:
    """Nothing is done, and the watch ends with its job."""
    policy = tmp_path / "ask.yaml"
    policy.write_text(ASK)
    watch = toy.watch("kill", policy=str(policy))
    toy.wait_for("the question", lambda: toy.read() and toy.wanted())
    said = toy.start("approve", toy.name, str(toy.wanted()), "--refuse")
    assert toy.ends(said) == 0, toy.said
    assert toy.ends(watch) == 137, toy.said
    assert toy.starts() == 2
    assert toy.ordered(Verb.RESTART) == []


ASK = """\
apiVersion: jobwatchdog/v1
kind: Policy
metadata: {name: asks}
spec:
  mode: approve
  rules:
    - name: stopped
      on: [rank_crash, hang_no_output]
      ladder:
        - do: [{restart: {from: last_good_checkpoint}}]
      verify: {steps_advance: 3, within: 60s}
  guardrails:
    restarts: {max: 3, per: 1h}
    stale_after: 10m
"""
