"""One self-contained HTML page of a replay."""

from __future__ import annotations

import re
from html import escape

from jobwatchdog import __version__
from jobwatchdog.cli.render import plan_words, refusal_words, who
from jobwatchdog.model import Incident
from jobwatchdog.shell.replay import ReplayResult, utc

_MARKUP = re.compile(r"\[/?[a-z #0-9]*\]")

_STYLE = """
:root { color-scheme: light dark; --line: #8883; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 0; }
section { border: 1px solid var(--line); border-left-width: .4rem; border-radius: .4rem; padding: .8rem 1rem; margin: 1rem 0; }
.hardware { border-left-color: #d33; } .infrastructure { border-left-color: #d90; }
.application { border-left-color: #a3c; } .unknown { border-left-color: #39c; }
.dim { color: var(--dim); } .plan { font-weight: 600; }
pre { overflow-x: auto; background: #8881; padding: .6rem; border-radius: .3rem; font-size: 13px; margin: .6rem 0 0; }
pre b { color: #47c; font-weight: normal; } td, th { text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top; }
"""


def html_report(result: ReplayResult, title: str) -> str:
    """Return the page."""
    body = "\n".join(_incident(result, incident) for incident in result.incidents)
    if not result.incidents:
        body = "<section><h2>Nothing broke</h2><p>No incident was found.</p></section>"
    skipped = "".join(f"<li>{escape(s.path)}: {escape(s.reason)}</li>" for s in result.skipped[:100])
    left = f"<h2>Left out</h2><ul>{skipped}</ul>" if skipped else ""
    stats = f"{result.files} files, {result.lines:,} lines, {result.n_bytes / 1e6:,.1f} MB in {result.wall_s:.1f} s"
    policies = ", ".join(result.policies) or "none"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="dim">{len(result.incidents)} incidents · {escape(stats)} · policies: {escape(policies)} · jobwatchdog {__version__}</p>
{body}
{left}
</body></html>
"""


def _incident(result: ReplayResult, incident: Incident) -> str:
    plans = [_MARKUP.sub("", plan_words(made)) for made in result.plans.get(incident.id, [])]
    if not plans:
        plans = [f"nothing: {refusal_words(refused)}" for refused in result.refusals.get(incident.id, [])[:1]]
    rows = [
        ("who", who(incident.suspects)),
        ("since", (utc(incident.first_seen_s) or "no time in the log") + _step(incident)),
        ("cause", f"{incident.cause_class}, {incident.confidence:.0%} sure"),
        ("restart helps", incident.restart_helps.value),
        ("explains", ", ".join(incident.symptoms)),
        ("state", incident.state.value),
    ]
    table = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows if v)
    done = "".join(f'<p class="plan">→ {escape(plan)}</p>' for plan in plans)
    lines = "\n".join(f"<b>{escape(_where(e.file, e.line))}</b> {escape(e.text)}" for e in incident.evidence)
    kind = escape(incident.kind.value)
    return f'<section class="{incident.cause_class}"><h2>{kind}</h2><table>{table}</table>{done}<pre>{lines}</pre></section>'


def _step(incident: Incident) -> str:
    return f", step {incident.onset_step}" if incident.onset_step is not None else ""


def _where(file: str | None, line: int | None) -> str:
    return f"{file}:{line}" if file and line else (file or "seen")
