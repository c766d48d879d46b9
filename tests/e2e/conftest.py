"""Drives real jobs through the real command line, as a user would, and looks at what happened to them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from jobwatchdog.model import ActionOrdered, ApprovalWanted, Decision, Incident, IncidentChanged, Verb
from jobwatchdog.model.codec import CodecError, loads

CLI = [sys.executable, "-m", "jobwatchdog"]
LIMIT_S = 150.0


@dataclass
class Toy:
    """One training job in a folder of its own, and the watchdogs that looked after it."""

    folder: Path
    backend: str = "plain"
    steps: int = 40
    step_s: float = 0.1
    fault_step: int = 17
    name: str = "toy"
    decisions: list[Decision] = field(default_factory=list)
    said: str = ""
    _running: list[subprocess.Popen[str]] = field(default_factory=list)

    # ---- starting -------------------------------------------------------------------------------

    def command(self, fault: str, *more: str) -> list[str]:
        """The job's own command line."""
        return [
            sys.executable, "-m", "jobwatchdog.testing.toy_train", "--nproc", "2", "--steps", str(self.steps),
            "--step-s", str(self.step_s), "--ckpt-every", "5", "--ckpt-dir", str(self.checkpoints), "--fault", fault,
            "--fault-step", str(self.fault_step), "--backend", self.backend, *more,
        ]  # fmt: skip

    def env(self, **more: str) -> dict[str, str]:
        """Without what an outer watchdog left."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("JOBWATCHDOG_")}
        return own | {"JOBWATCHDOG_STATE": str(self.folder / "state")} | more

    def watch(
        self, fault: str, *options: str, policy: str | None = "local/enforce", runtime: str = "plain", **env: str
    ) -> subprocess.Popen[str]:
        """Start `jobwatchdog run` on the job."""
        chosen = ["--policy", policy] if policy else []
        return self.start(
            "run", "--name", self.name, "--runtime", runtime, "--format", "json", "--quiet", *chosen, "--checkpoints",
            str(self.checkpoints), *options, "--", *self.command(fault), env=env,
        )  # fmt: skip

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the command line tool; what it says on stderr is kept in a file."""
        with (self.folder / "said.log").open("a") as said:
            process = subprocess.Popen(
                [*CLI, *arguments], cwd=self.folder, env=self.env(**(env or {})), stdout=subprocess.PIPE, stderr=said,
                text=True, start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return process

    def ends(self, process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> int:
        """Wait for a watchdog's end; its decisions are in `decisions` then."""
        try:
            process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"no end within {limit_s:g} s; it said:\n{self.read()[-4000:]}")
        self.read()
        return process.returncode

    def finish(self, fault: str, *options: str, policy: str | None = "local/enforce", **env: str) -> int:
        """Run the job under watch to its end; the exit code."""
        return self.ends(self.watch(fault, *options, policy=policy, **env))

    def close(self) -> None:
        """Leave nothing behind, whatever failed."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()
        for left in psutil.process_iter():
            try:
                if str(self.folder) in " ".join(left.cmdline()):
                    left.kill()
            except psutil.Error:
                continue

    # ---- seeing ---------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Path:
        """Where the job keeps them."""
        return self.folder / "checkpoints"

    @property
    def job_folder(self) -> Path:
        """Where the watchdog keeps its records of the job."""
        return self.folder / "state" / "jobs" / self.name

    def read(self) -> str:
        """Read what the watchdogs said so far."""
        self.said = (self.folder / "said.log").read_text()
        self.decisions = []
        for line in self.said.splitlines():
            if line.startswith("{"):
                try:
                    self.decisions.append(loads(Decision, line))
                except CodecError:
                    continue  # cut by a kill
        return self.said

    def incidents(self) -> list[Incident]:
        """Each incident as it was told last, in order of appearance."""
        found: dict[str, Incident] = {}
        for decision in self.decisions:
            if isinstance(decision, IncidentChanged):
                found[decision.incident.id] = decision.incident
        return list(found.values())

    def ordered(self, verb: Verb | None = None) -> list[str]:
        """Keys of the actions that were ordered."""
        orders = [d.action for d in self.decisions if isinstance(d, ActionOrdered)]
        return [action.key for action in orders if verb is None or action.verb is verb]

    def wanted(self) -> str | None:
        """The plan that waits for approval."""
        return next((d.plan.id for d in self.decisions if isinstance(d, ApprovalWanted)), None)

    def starts(self) -> int:
        """How many rank processes were ever started: two an attempt."""
        file = self.checkpoints / ".starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def output(self, attempt: int, stream: str = "stdout") -> str:
        """What the job printed."""
        path = self.job_folder / f"attempt-{attempt}" / f"{stream}.log"
        return path.read_text() if path.exists() else ""

    def restart(self, attempt: int) -> dict[str, object]:
        """How an attempt was started."""
        found: dict[str, object] = json.loads((self.job_folder / f"restart-{attempt}.json").read_text())
        return found

    def wait_for(self, what: str, seen: Callable[[], object], limit_s: float = 60.0) -> None:
        """Wait until something is seen."""
        deadline = time.monotonic() + limit_s
        while not seen():
            if time.monotonic() > deadline:
                pytest.fail(f"{what} was not seen within {limit_s:g} s; said:\n{self.read()[-4000:]}")
            time.sleep(0.05)

    def wait_step(self, step: int, attempt: int = 0) -> None:
        """Wait until the job printed a step."""
        self.wait_for(f"step {step} of attempt {attempt}", lambda: f"iter {step}:" in self.output(attempt))

    def root(self, attempt: int = 0) -> int:
        """The job's own first process."""
        record = json.loads((self.job_folder / f"attempt-{attempt}" / "start.json").read_text())
        return int(record["pid"])

    def living(self) -> list[psutil.Process]:
        """The job's processes."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if "toy_train" in line and str(self.checkpoints) in line and "jobwatchdog run" not in line:
                found.append(process)
        return [p for p in found if "--policy" not in p.cmdline() and "--runtime" not in p.cmdline()]


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    """A job of plain processes: quick to start, the same faults and log lines."""
    job = Toy(tmp_path)
    yield job
    job.close()


@pytest.fixture
def torch_toy(tmp_path: Path) -> Iterator[Toy]:
    """A job of two PyTorch ranks with gloo; the group's timeout stays at its default of 30 minutes."""
    if importlib.util.find_spec("torch") is None:
        if os.environ.get("CI"):
            pytest.fail("PyTorch is missing: in CI its jobs must be driven for real")
        pytest.skip("PyTorch is not installed")
    job = Toy(tmp_path, backend="torch")
    yield job
    job.close()


@pytest.fixture
def interrupt() -> Callable[[subprocess.Popen[str]], None]:
    """Ctrl-C."""
    return lambda process: process.send_signal(signal.SIGINT)
