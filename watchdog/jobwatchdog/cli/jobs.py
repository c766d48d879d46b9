"""`status`, `incidents`, `approve`, `close-breaker`: what the ledgers of this machine say, and a person's word."""

from __future__ import annotations

import asyncio
import getpass
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from jobwatchdog.cli.console import Exit, Format, err, fail, out, plain_errors, print_json, state_dir

_STATE = Annotated[Path | None, typer.Option("--state", help="The state directory; default $JOBWATCHDOG_STATE.")]
_FORMAT = Annotated[Format, typer.Option("--format", "-f", help="For people or for programs.")]


@plain_errors
def status(state: _STATE = None, format: _FORMAT = Format.TEXT) -> None:
    """Show the jobs of this machine: attempt, state, open incidents, what is being done."""
    rows = asyncio.run(_jobs(state_dir(state)))
    if format is Format.JSON:
        print_json(rows)
        return
    if not rows:
        out.print("no job is known here; start one with: jobwatchdog run -- CMD…")
        return
    table = Table("job", "state", "attempt", "incidents", "last action", "command", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["job"], row["state"], str(row["attempt"]), str(row["open_incidents"]), row["last_action"],
                      row["command"][:60])  # fmt: skip
    out.print(table)


async def _jobs(root: Path) -> list[dict[str, Any]]:
    from jobwatchdog.actuators.local.launcher import LocalLauncher
    from jobwatchdog.model import IncidentState

    launcher = LocalLauncher(root)
    rows = []
    for folder in _folders(root):
        spec = _spec(folder)
        attempt = launcher.latest_attempt(spec.job) if spec is not None else None
        phase = "watched" if spec is None or spec.job.startswith("pid-") else "not started"
        if spec is not None and attempt is not None:
            phase = _state_word(launcher.state(spec.job, attempt))
        incidents, past = await _read(folder)
        opened = [
            i for i in incidents if i.state in (IncidentState.OPEN, IncidentState.PLANNED, IncidentState.VERIFYING)
        ]
        last = past[-1] if past else None
        rows.append(
            {
                "job": str(spec.job) if spec is not None else folder.name,
                "state": "cancelled" if spec is not None and launcher.cancelled(spec.job) else phase,
                "attempt": attempt or 0,
                "open_incidents": len(opened) if phase in ("running", "watched") else 0,
                "incidents": len(incidents),
                "last_action": f"{last.action.verb} {last.outcome or 'under way'}" if last else "",
                "command": " ".join(spec.command) if spec is not None else "(logs only)",
                "folder": str(folder),
            }
        )
    return rows


def _state_word(state: Any) -> str:
    """`exited` alone would hide the one thing that is asked for."""
    from jobwatchdog.actuators.local.records import AttemptPhase

    if state.phase is not AttemptPhase.EXITED:
        return str(state.phase.value)
    if state.succeeded:
        return "finished"
    how = f"signal {state.signal}" if state.signal else f"exit code {state.code}" if state.code else "unseen"
    return f"failed ({how})"


def _folders(root: Path) -> list[Path]:
    from jobwatchdog.ledger.database import folders_with_ledger

    return folders_with_ledger(root / "jobs")


def _spec(folder: Path) -> Any:
    from jobwatchdog.actuators.local.records import load_spec

    return load_spec(folder)


async def _read(folder: Path) -> tuple[list[Any], list[Any]]:
    from jobwatchdog.ledger import LedgerError, Reader
    from jobwatchdog.ledger.database import url_of

    try:
        async with await Reader.open(url_of(folder)) as reader:
            return await reader.incidents(), await reader.history()
    except LedgerError as error:
        err.print(f"{folder}: {error}", style="yellow")
        return [], []


@plain_errors
def incidents(
    job: Annotated[str | None, typer.Argument(help="Only this job.")] = None,
    state: _STATE = None,
    format: _FORMAT = Format.TEXT,
) -> None:
    """List incidents with what was done about each."""
    from jobwatchdog.cli.render import show_incident
    from jobwatchdog.model.codec import dumps

    root = state_dir(state)
    folders = [folder for folder in _folders(root) if job in (None, folder.name)]
    if job is not None and not folders:
        fail(f"no job {job!r} in {root}", f"known: {', '.join(f.name for f in _folders(root)) or 'none'}")
    found = [(folder.name, *asyncio.run(_read(folder))) for folder in folders]
    if format is Format.JSON:
        print_json(
            [
                {
                    "job": name,
                    "incidents": [json.loads(dumps(i)) for i in seen],
                    "actions": [json.loads(dumps(p)) for p in past],
                }
                for name, seen, past in found
            ]
        )
        return
    shown = 0
    for name, seen, past in found:
        for incident in seen:
            shown += 1
            out.print(f"[dim]{name}[/]")
            show_incident(incident, out)
            for one in past:
                if one.action.incident == incident.id:
                    when = time.strftime("%H:%M:%S", time.gmtime(one.ordered_s))
                    outcome = one.outcome or "no receipt yet"
                    out.print(
                        f"  [green]→[/] {when} {one.policy}/{one.rule} rung {one.rung}: {one.action.verb} [bold]{outcome}[/]"
                    )
    if not shown:
        out.print("no incidents on record")


@plain_errors
def approve(
    job: Annotated[str, typer.Argument(help="The job.")],
    plan: Annotated[str, typer.Argument(help="The plan that waits, as `run` and `incidents` show it.")],
    refuse: Annotated[bool, typer.Option("--refuse", help="Say no instead.")] = False,
    state: _STATE = None,
) -> None:
    """Approve (or refuse) a plan that waits for a person."""
    folder = _folder(state_dir(state), job)
    asked = asyncio.run(_asked(folder))
    if plan not in asked:
        fail(f"no plan {plan!r} of {job} asks for approval", f"asked so far: {', '.join(asked) or 'none'}")
    _ask(state_dir(state), job, {"plan": plan, "approved": not refuse})
    out.print(f"{'refused' if refuse else 'approved'} {plan}")


@plain_errors
def close_breaker(
    job: Annotated[str, typer.Argument(help="The job.")],
    policy: Annotated[str, typer.Argument(help="The policy whose breaker is open.")],
    state: _STATE = None,
) -> None:
    """Close a policy's breaker after its failures were looked at."""
    _ask(state_dir(state), job, {"close_breaker": policy})
    out.print(f"asked to close the breaker of {policy}")


async def _asked(folder: Path) -> list[str]:
    """The plans that ever waited for approval, oldest first."""
    from jobwatchdog.ledger import Reader
    from jobwatchdog.ledger.database import url_of
    from jobwatchdog.model import ApprovalWanted

    async with await Reader.open(url_of(folder)) as reader:
        return [str(e.item.plan.id) for e in await reader.story() if isinstance(e.item, ApprovalWanted)]


def _folder(root: Path, job: str) -> Path:
    folder = root / "jobs" / job
    if folder not in _folders(root):
        known = ", ".join(f.name for f in _folders(root)) or "none"
        fail(f"no job {job!r} in {root}", f"known: {known}", code=Exit.USAGE)
    return folder


def _ask(root: Path, job: str, request: dict[str, Any]) -> None:
    target = _folder(root, job) / "requests"
    target.mkdir(exist_ok=True)
    name = f"{time.time_ns()}.json"
    part = target / f".{name}.part"
    part.write_text(json.dumps({**request, "by": getpass.getuser()}))
    part.replace(target / name)
