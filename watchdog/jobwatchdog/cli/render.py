"""Incidents for tired people: what broke, who, since when, what would have been done, and the lines that say so."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from jobwatchdog.model import CauseClass, Incident, IncidentState, PlanMade, PlanRefused, RestartHelps, Suspects
from jobwatchdog.shell.replay import ReplayResult, utc

_COLOURS = {
    CauseClass.HARDWARE: "red",
    CauseClass.INFRASTRUCTURE: "yellow",
    CauseClass.APPLICATION: "magenta",
    CauseClass.UNKNOWN: "cyan",
}
_HELPS = {
    RestartHelps.YES: "a restart helps",
    RestartHelps.NO: "a plain restart does not help",
    RestartHelps.MAYBE: "a restart may help",
}
EVIDENCE_SHOWN = 4


def who(suspects: Suspects) -> str:
    """Name the suspects in words."""
    parts = [
        _list("node", suspects.nodes),
        _list("rank", tuple(map(str, suspects.ranks))),
        _list("GPU", suspects.gpus),
        _list("link", suspects.links),
        _list("process", tuple(map(str, suspects.pids))),
    ]
    return ", ".join(part for part in parts if part) or "unknown"


def _list(word: str, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"{word if len(names) == 1 else word + 's'} {shown}"


def show_replay(result: ReplayResult, console: Console) -> None:
    """Print a replay as a timeline."""
    if not result.incidents:
        console.print("[green]●[/] nothing broke: no incident found")
    for number, incident in enumerate(result.incidents):
        if number:
            console.print()
        show_incident(incident, console)
        _plans(result, incident, console)
        _evidence(incident, console)
    console.print()
    megabytes = result.n_bytes / 1e6
    files = f"{result.files} file{'s' if result.files != 1 else ''}"
    console.print(f"{files}, {result.lines:,} lines, {megabytes:,.1f} MB in {result.wall_s:.1f} s", style="dim")
    for skipped in result.skipped[:10]:
        console.print(f"left out {escape(skipped.path)}: {escape(skipped.reason)}", style="yellow")
    if len(result.skipped) > 10:
        console.print(f"… and {len(result.skipped) - 10} more left out", style="yellow")
    for failed in result.failed_detectors:
        console.print(f"detector {failed.detector} failed and was left out: {escape(failed.error)}", style="red")


def show_incident(incident: Incident, console: Console) -> None:
    """Print the head of one incident: three lines."""
    colour = _COLOURS[incident.cause_class]
    state = "" if incident.state is IncidentState.OPEN else f"  [dim]({incident.state})[/]"
    console.print(
        f"[bold {colour}]● {incident.kind}[/]  [bold]{escape(who(incident.suspects))}[/]  "
        f"[dim]{incident.cause_class}, {incident.confidence:.0%} sure[/]{state}"
    )
    since = utc(incident.first_seen_s) or "no time in the log"
    step = f", step {incident.onset_step}" if incident.onset_step is not None else ""
    xid = f", XID {incident.xid}" if incident.xid is not None else ""
    console.print(f"  since {since}{step}{xid} · {_HELPS[incident.restart_helps]}")
    if incident.symptoms:
        console.print(f"  explains: {', '.join(incident.symptoms)}", style="dim")


def _plans(result: ReplayResult, incident: Incident, console: Console) -> None:
    for made in result.plans.get(incident.id, [])[:3]:
        console.print(f"  [green]→[/] {plan_words(made)}")
    if incident.id not in result.plans:
        for refused in result.refusals.get(incident.id, [])[:1]:
            console.print(f"  [yellow]→ nothing:[/] {escape(refusal_words(refused))}")


def plan_words(made: PlanMade) -> str:
    """Say what a plan does, in one line of markup."""
    plan = made.plan
    verbs = " → ".join(_verb(action.verb.value, dict(action.args)) for action in plan.actions)
    verb = {"observe": "would", "approve": "would ask, then", "enforce": "does"}[plan.mode.value]
    return f"[bold]{escape(plan.policy)}[/]/{escape(plan.rule)} rung {plan.rung} {verb}: [bold]{escape(verbs)}[/]"


def _verb(verb: str, args: dict[str, object]) -> str:
    words = []
    for name in ("from", "nodes", "exclude_nodes", "nccl", "allocator", "skip_data", "to", "signal"):
        value = args.get(name)
        if value in (None, [], {}, ""):
            continue
        if isinstance(value, dict):
            value = " ".join(f"{k}={v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ",".join(map(str, value))
        words.append(str(value) if name in ("from", "to", "signal", "nodes") else f"{name.replace('_', ' ')} {value}")
    return f"{verb}({', '.join(words)})" if words else verb


def refusal_words(refused: PlanRefused) -> str:
    """Say why there is no plan."""
    failed = [check for check in refused.checks if not check.passed]
    decisive = [c for c in failed if not c.name.startswith("rule ")] or failed[-1:]
    return "; ".join(f"{check.name}: {check.because}" for check in decisive) or "no rule applies"


def _evidence(incident: Incident, console: Console) -> None:
    for line in incident.evidence[:EVIDENCE_SHOWN]:
        where = f"{line.file}:{line.line}" if line.file and line.line else (line.file or "seen")
        text = Text("  ")
        text.append(f"{where}  ", style="blue")
        room = max(40, console.width - len(where) - 6)
        text.append(line.text if len(line.text) <= room else line.text[: room - 1] + "…")
        console.print(text, no_wrap=True, overflow="ellipsis")
    if len(incident.evidence) > EVIDENCE_SHOWN:
        console.print(f"  … {len(incident.evidence) - EVIDENCE_SHOWN} more lines", style="dim")
