"""`jobwatchdog detectors`: what is looked for, and how."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

import typer
from rich.table import Table

from jobwatchdog import bundled
from jobwatchdog.cli.console import Format, fail, out, plain_errors, print_json

detectors_app = typer.Typer(help="What is looked for, and how.", no_args_is_help=True)


@detectors_app.command("list")
@plain_errors
def list_detectors(
    format: Annotated[Format, typer.Option("--format", "-f", help="For people or for programs.")] = Format.TEXT,
) -> None:
    """List the detectors."""
    from jobwatchdog.detectors.registry import parse_document

    documents = [parse_document(text) for text in bundled.detector_documents().values()]
    if format is Format.JSON:
        print_json([{"id": d.id, "summary": d.summary, "status": d.status, "cause": d.cause} for d in documents])
        return
    table = Table("detector", "cause", "status", "what it sees", box=None, pad_edge=False)
    for d in documents:
        table.add_row(f"[bold]{d.id}[/]", d.cause, d.status, d.summary)
    out.print(table)


@detectors_app.command("show")
@plain_errors
def show_detector(
    name: Annotated[str, typer.Argument(help="A detector's id, as `detectors list` shows it.")],
    format: Annotated[Format, typer.Option("--format", "-f", help="For people or for programs.")] = Format.TEXT,
) -> None:
    """Show one detector: thresholds with their reasons, signatures, lookalikes."""
    import importlib
    import inspect

    import yaml

    from jobwatchdog.detectors.registry import parse_document

    documents = bundled.detector_documents()
    if name not in documents:
        near = get_close_matches(name, documents, 2)
        fail(f"no detector {name!r}", f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(documents)}")
    document = parse_document(documents[name])
    texts = dict(bundled.signature_texts())
    raw = texts.get(f"detectors/{name}/signatures.yaml")
    signatures = yaml.safe_load(raw)["signatures"] if raw else []
    about = inspect.cleandoc(importlib.import_module(f"jobwatchdog.detectors.{name}.detector").__doc__ or "")
    if format is Format.JSON:
        thresholds = {k: {"value": t.value, "unit": t.unit, "why": t.why} for k, t in document.thresholds.items()}
        print_json({"id": document.id, "summary": document.summary, "about": about, "thresholds": thresholds,
                    "signatures": signatures})  # fmt: skip
        return
    out.print(f"[bold]{document.id}[/]  [dim]{document.cause}, {document.status} since {document.since}[/]")
    out.print(about, markup=False)
    if document.thresholds:
        table = Table("threshold", "value", "why", box=None, pad_edge=False)
        for key, t in document.thresholds.items():
            table.add_row(key, f"{t.value:g} {t.unit}", t.why)
        out.print()
        out.print(table)
    if signatures:
        table = Table("signature", "role", "what the line says", box=None, pad_edge=False)
        for s in signatures:
            table.add_row(s["id"], s.get("role", "cause"), s["summary"])
        out.print()
        out.print(table)
