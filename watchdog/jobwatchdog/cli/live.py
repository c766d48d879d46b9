"""A live watch on the terminal: the job's output as it is, and what happens to it in between."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jobwatchdog.cli.console import Exit, err
from jobwatchdog.cli.render import plan_words, refusal_words, who
from jobwatchdog.model import (
    ActionOrdered,
    ApprovalWanted,
    Decision,
    DetectorFailed,
    IncidentChanged,
    IncidentState,
    PlanMade,
    PlanRefused,
)
from jobwatchdog.model.codec import loads
from jobwatchdog.shell.hosts import Host, open_host
from jobwatchdog.shell.spec import WatchSpec
from jobwatchdog.sources.tail import Blocks, Tailer

POLL_S = 0.15

OnDecision = Callable[[Decision], None]


async def watch_live(
    spec: WatchSpec,
    *,
    ray: bool,
    address: str | None = None,
    json_lines: bool = False,
    show_output: bool = True,
    owns_job: bool = True,
    on_decision: OnDecision | None = None,
    on_output: Callable[[bytes], None] | None = None,
    on_poll: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Watch until the job has ended for good; return its exit code."""
    tell = on_decision or (_tell_json if json_lines else tell_text)
    host, note = await open_host(spec, ray=ray, address=address)
    if note:
        err.print(note, style="yellow", markup=False)
    interrupts = _Interrupts(host, owns_job)
    echo = _Echo(spec, on_output) if show_output or on_output is not None else None
    try:
        return await _follow(host, interrupts, tell, on_poll)
    finally:
        interrupts.restore()
        if echo is not None:
            await echo.stop()
        await host.close()


async def _follow(
    host: Host, interrupts: _Interrupts, tell: OnDecision, on_poll: Callable[[dict[str, Any]], None] | None
) -> int:
    position = 0
    while True:
        position, fresh, code, snapshot = await host.updates(position)
        for text in fresh:
            tell(loads(Decision, text))
        if on_poll is not None:
            on_poll(snapshot)
        if code is not None:
            if code == 128 + signal.SIGTERM:
                err.print("somebody ended the job by SIGTERM: it stays ended", style="yellow")
            return code
        if interrupts.leave:
            return int(Exit.CANCELLED)
        await asyncio.sleep(POLL_S)


class _Interrupts:
    """First Ctrl-C: the job's (or the end of the watching); second: kill. SIGTERM and SIGHUP end the watching alone."""

    def __init__(self, host: Host, owns_job: bool) -> None:
        self.leave = False
        self._host = host
        self._owns = owns_job
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end)

    def _interrupt(self) -> None:
        self._count += 1
        if not self._owns:
            self._end()
        elif self._count == 1:
            err.print("\ninterrupt passed to the job; it is not restarted. Ctrl-C again kills it", style="yellow")
            self._spawn(self._host.cancel_job("its user (Ctrl-C)"))
        else:
            err.print("killing the job", style="yellow")
            self._spawn(self._host.kill_job())

    def _end(self) -> None:
        err.print("watching ends; the job goes on", style="yellow")
        self.leave = True

    def _spawn(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            await work

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def restore(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


class _Echo:
    """The job's output, as it is, on ours."""

    def __init__(self, spec: WatchSpec, on_output: Callable[[bytes], None] | None) -> None:
        self._on_output = on_output
        self._tail = Tailer(self._show)
        self._tail.add_glob(f"{spec.state_dir}/jobs/{spec.name}/attempt-*/std*.log")
        self._task = asyncio.create_task(self._tail.run(), name="echo")

    async def _show(self, blocks: Blocks) -> None:
        for block in blocks:
            if self._on_output is not None:
                self._on_output(block.data)
                continue
            stream = sys.stderr if block.info.file.endswith("stderr.log") else sys.stdout
            stream.flush()
            stream.buffer.write(block.data)
            stream.buffer.flush()

    async def stop(self) -> None:
        self._tail.stop()
        await asyncio.wait({self._task}, timeout=3.0)
        self._task.cancel()


def _tell_json(decision: Decision) -> None:
    from jobwatchdog.model.codec import dumps

    sys.stderr.write(json.dumps(json.loads(dumps(decision))) + "\n")
    sys.stderr.flush()


def tell_text(decision: Decision) -> None:
    """Print one decision as a line."""
    for line in lines_of(decision):
        err.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {line}", soft_wrap=True)


def lines_of(decision: Decision) -> list[str]:
    """Return a decision in words, with markup."""
    from rich.markup import escape

    match decision:
        case IncidentChanged(incident=incident, why=why):
            mark = {
                IncidentState.OPEN: "[bold red]●[/]",
                IncidentState.RESOLVED: "[bold green]✓[/]",
                IncidentState.ESCALATED: "[bold yellow]![/]",
                IncidentState.IGNORED: "[dim]○[/]",
            }.get(incident.state, "[bold cyan]…[/]")
            line = f"{mark} [bold]{incident.kind}[/] {escape(who(incident.suspects))} [dim]{escape(why)}[/]"
            lines = [line]
            if why == "opened" and incident.evidence:
                lines.append(f"    {escape(incident.evidence[0].text[:160])}")
            return lines
        case PlanMade():
            return [f"[green]→[/] {plan_words(decision)}"]
        case PlanRefused():
            return [f"[yellow]→ nothing:[/] {escape(refusal_words(decision))}"]
        case ActionOrdered(action=action):
            return [f"[cyan]▶[/] {action.verb} [dim]{escape(action.key)}[/]"]
        case ApprovalWanted(plan=plan):
            return [f"[bold yellow]?[/] waits for approval: jobwatchdog approve {escape(plan.job)} {plan.id}"]
        case DetectorFailed(detector=detector, error=error):
            return [f"[red]detector {detector} failed and is left out:[/] {escape(error)}"]
        case _:
            return []
