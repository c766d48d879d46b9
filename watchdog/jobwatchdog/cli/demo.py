"""The demo: a real two-rank training job breaks and is restored from its last good checkpoint, on one screen."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from jobwatchdog.cli.console import Exit, err, out, policy_texts
from jobwatchdog.cli.live import lines_of, watch_live
from jobwatchdog.model import Decision, IncidentChanged, IncidentState, PlanMade
from jobwatchdog.shell.spec import WatchSpec

_STEP = re.compile(rb"iter (\d+): loss ([\d.]+|nan|inf)")
_BLOCKS = "▁▂▃▄▅▆▇█"
_WHAT = {
    "kill": "rank 1 is ended by SIGKILL",
    "stop": "rank 1 is stopped (SIGSTOP): it neither works nor dies, the other rank waits",
    "oom-after-checkpoint": "rank 1 runs out of GPU memory in the step after a checkpoint",
    "nan": "the weights turn NaN; a checkpoint made after that is not good",
}


class _Screen:
    """What the terminal shows: the loss as it falls, and the story of the fault."""

    def __init__(self, fault: str, steps: int) -> None:
        self.fault, self.steps = fault, steps
        self.losses: deque[float] = deque(maxlen=60)
        self.step = 0
        self.highest = 0
        self.attempt = 0
        self.story: list[str] = []
        self.begun = time.monotonic()
        self.resolved = False
        self.planned = False
        self._tail = b""

    def output(self, data: bytes) -> None:
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail = data[cut:]
        for number, loss in _STEP.findall(data[:cut]):
            self.step = int(number)
            if self.step < self.highest - 1 and self.planned and self.attempt:
                self.say(f"training goes on at step {self.step}, attempt {self.attempt}") if self.step else None
            self.highest = self.step
            self.losses.append(float(loss))

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, PlanMade):
            self.planned = True
        if isinstance(decision, IncidentChanged) and decision.incident.state is IncidentState.RESOLVED:
            self.resolved = True
        for line in lines_of(decision):
            self.say(line)

    def poll(self, snapshot: dict[str, Any]) -> None:
        jobs = snapshot.get("jobs") or []
        if jobs:
            self.attempt = int(jobs[0].get("attempt") or 0)

    def say(self, line: str) -> None:
        stamp = f"[dim]{time.monotonic() - self.begun:5.1f} s[/] "
        self.story.append(stamp + line)
        if not out.is_terminal:
            out.print(stamp + line, soft_wrap=True)

    def __rich__(self) -> RenderableType:
        head = Text.from_markup(f"[bold]step {self.step}[/] of {self.steps}   attempt {self.attempt}   ")
        head.append(spark(self.losses), style="cyan")
        if self.losses:
            head.append(f"  loss {self.losses[-1]:.3f}", style="bold")
        story = [Text.from_markup(line) for line in self.story[-14:]] or [Text("training…", style="dim")]
        title = f"jobwatchdog demo: {_WHAT[self.fault]}"
        return Panel(Group(head, Text(), *story), title=title, border_style="green" if self.resolved else "cyan")


def spark(values: deque[float]) -> str:
    """Draw values as a line of blocks."""
    finite = [v for v in values if v == v and abs(v) != float("inf")]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join("×" if v != v else _BLOCKS[min(7, int((v - low) / span * 7.99))] for v in values)


async def run_demo(fault: str, folder: Path, *, ray: bool, steps: int) -> int:
    """Run the demo in a folder; return 0 when the job was restored and ended well."""
    torch = find_spec("torch") is not None
    backend = "torch" if torch else "plain"
    command = (
        sys.executable, "-m", "jobwatchdog.testing.toy_train", "--nproc", "2", "--steps", str(steps), "--step-s", "0.2",
        "--ckpt-every", "10", "--ckpt-dir", str(folder / "checkpoints"), "--fault", fault, "--fault-step", "25",
        "--backend", backend,
    )  # fmt: skip
    spec = WatchSpec(
        name="demo",
        state_dir=str(folder / "state"),
        command=command,
        cwd=str(folder),
        env=dict(os.environ),
        policies=tuple(policy_texts(["local/enforce"])),
        checkpoints=(str(folder / "checkpoints"),),
    )
    what = "PyTorch with gloo" if torch else "plain processes (PyTorch is not installed)"
    err.print(f"a two-rank training job ({what}), watched; in step 25 {_WHAT[fault]}", style="dim")
    screen = _Screen(fault, steps)
    live = Live(screen, console=out, refresh_per_second=8) if out.is_terminal else contextlib.nullcontext()
    with live:
        code = await watch_live(
            spec, ray=ray, on_decision=screen.decision, on_output=screen.output, on_poll=screen.poll
        )
    restored = screen.resolved and code == 0
    _report(screen, folder, code, restored)
    return int(Exit.OK if restored else Exit.FOUND)


def _report(screen: _Screen, folder: Path, code: int, restored: bool) -> None:
    """Replay the job's own logs, and say how it went."""
    from jobwatchdog.cli.render import show_replay
    from jobwatchdog.policy.load import load_policy
    from jobwatchdog.shell.replay import replay

    out.print()
    out.print("[bold]the same, replayed from the job's log:[/]")
    policies = [load_policy(text, file) for file, text in policy_texts(["local/enforce"])]
    logs = [folder / "state" / "jobs" / "demo" / "attempt-0"]
    result = replay(logs, policies)
    if result.incidents:
        show_replay(result, out)
    else:
        out.print("nothing: this fault left no words in the log, only the live watch could see it", style="dim")
    out.print()
    if restored:
        out.print(f"[bold green]restored:[/] the job reached step {screen.step} and ended with exit code {code}")
    else:
        out.print(f"[bold red]not restored:[/] exit code {code} at step {screen.step}")
