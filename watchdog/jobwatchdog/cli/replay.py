"""`jobwatchdog replay`: past logs through the same engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobwatchdog.cli.console import (
    Exit,
    Format,
    err,
    fail,
    out,
    plain_errors,
    policy_texts,
    print_json,
    warn_of_plugins,
)

if TYPE_CHECKING:
    from jobwatchdog.sources.files import LogFile


@plain_errors
def replay(
    paths: Annotated[
        list[str], typer.Argument(help="Logs: files, folders, .gz .zst .bz2 .xz, or - for standard input.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="A policy file, or the name of a bundled one. Repeatable."),
    ] = None,
    catalogue: Annotated[
        list[Path] | None, typer.Option("--catalogue", help="A site's own catalogue of log signatures. Repeatable.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="For people or for programs.")] = Format.TEXT,
    report: Annotated[Path | None, typer.Option("--report", help="Also write a self-contained HTML page here.")] = None,
) -> None:
    """Say what broke in past logs, who is at fault, and what a policy would have done.

    Several files are one job: their lines are put in order by time. Nothing is executed.
    """
    from jobwatchdog.policy.load import load_policy
    from jobwatchdog.shell.replay import replay as run

    policies = [load_policy(text, file) for file, text in policy_texts(policy or ["default"])]
    for path in paths:
        if path != "-" and not Path(path).exists():
            fail(f"{path} does not exist", "give a log file, a folder of logs, or - for standard input")
    warn_of_plugins()
    with _Progress() as progress:
        result = run(paths, policies, catalogue or [], progress.begin)
    if report is not None:
        from jobwatchdog.cli.report import html_report

        try:
            report.write_text(html_report(result, f"Replay of {', '.join(paths)[:200]}"), encoding="utf-8")
        except OSError as error:
            fail(f"the report cannot be written to {report}: {error.strerror}")
        if format is Format.TEXT:
            err.print(f"report: {report}", style="dim")
    if format is Format.JSON:
        print_json(result.as_json())
    else:
        from jobwatchdog.cli.render import show_replay

        show_replay(result, out)
    unread = not result.lines and bool(result.skipped)
    raise typer.Exit(Exit.FOUND if result.incidents else Exit.USAGE if unread else Exit.OK)


class _Progress:
    """A bar on the terminal for input that takes long; nothing elsewhere."""

    BYTES_MIN = 32 << 20

    def __enter__(self) -> _Progress:
        self._bar: object | None = None
        return self

    def __exit__(self, *_: object) -> None:
        stop = getattr(self._bar, "stop", None)
        if stop is not None:
            stop()

    def begin(self, files: list[LogFile]) -> Callable[[int], None] | None:
        total = sum(file.size or 0 for file in files)
        if total < self.BYTES_MIN or not sys.stderr.isatty():
            return None
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        bar = Progress("reading", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
                       console=err, transient=True)  # fmt: skip
        task = bar.add_task("read", total=total)
        bar.start()
        self._bar = bar
        return lambda n: bar.advance(task, n)
