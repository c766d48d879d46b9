"""The command line."""

from __future__ import annotations

from typing import Annotated

import typer

from jobwatchdog import __version__
from jobwatchdog.cli.console import EXIT_CODES

app = typer.Typer(
    name="jobwatchdog",
    help="Watch LLM training jobs, say what broke and who is at fault, and carry out the declared remedy once.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jobwatchdog {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    del version


def _register() -> None:
    from jobwatchdog.cli.detectors import detectors_app
    from jobwatchdog.cli.doctor import doctor
    from jobwatchdog.cli.jobs import approve, close_breaker, incidents, status
    from jobwatchdog.cli.policy import policy_app
    from jobwatchdog.cli.replay import replay
    from jobwatchdog.cli.run import attach, demo, run

    passing = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command(context_settings=passing)(run)
    app.command()(attach)
    app.command()(status)
    app.command()(incidents)
    app.command()(approve)
    app.command("close-breaker")(close_breaker)
    app.command()(replay)
    app.add_typer(policy_app, name="policy")
    app.add_typer(detectors_app, name="detectors")
    app.command()(doctor)
    app.command()(demo)


_register()


def main() -> None:
    """Run the command line."""
    app()
