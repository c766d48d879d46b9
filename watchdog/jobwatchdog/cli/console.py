"""What all commands share: consoles, errors in plain words, exit codes, policies by name or path."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console

from jobwatchdog import bundled

P = ParamSpec("P")
R = TypeVar("R")

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


class Exit(IntEnum):
    """Exit codes; `run` passes on its job's own."""

    OK = 0  # nothing found, all well
    FOUND = 1  # incidents found, a test failed, something is missing
    USAGE = 2  # wrong arguments, unreadable input, a policy or catalogue with mistakes
    INTERNAL = 70  # our own fault; the job goes on
    CANCELLED = 130  # Ctrl-C


class Format(StrEnum):
    """Output for people or for programs."""

    TEXT = "text"
    JSON = "json"


EXIT_CODES = (
    "Exit codes: 0 nothing found · 1 incidents found or a check failed · 2 wrong usage or unreadable input · "
    "70 a fault of jobwatchdog itself · 130 Ctrl-C. `run` passes on its job's own code (128 + signal)."
)


def fail(message: str, hint: str = "", code: int = Exit.USAGE) -> NoReturn:
    """Say what is wrong and what to do, and leave."""
    err.print(f"[bold red]error:[/] {_escape(message)}")
    if hint:
        err.print(f"  {_escape(hint)}", style="dim")
    raise typer.Exit(code)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what a command raises into words; JOBWATCHDOG_DEBUG=1 shows the traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort, SystemExit):
            raise
        except KeyboardInterrupt:
            err.print("interrupted", style="dim")
            raise typer.Exit(Exit.CANCELLED) from None
        except BrokenPipeError:
            # The reader of our output left (`| head`): nothing to say.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.OK) from None
        except Exception as error:
            if os.environ.get("JOBWATCHDOG_DEBUG"):
                traceback.print_exc()
            known = type(error).__name__ in _KNOWN
            for line in str(error).splitlines() or [type(error).__name__]:
                err.print(f"[bold red]error:[/] {_escape(line)}")
            if not known:
                err.print(f"  ({type(error).__name__}; JOBWATCHDOG_DEBUG=1 shows where)", style="dim")
            raise typer.Exit(Exit.USAGE if known else Exit.INTERNAL) from None

    return wrapped


_KNOWN = frozenset(
    {
        "PolicyErrors",
        "CatalogueError",
        "LedgerError",
        "AttachError",
        "LaunchError",
        "FileNotFoundError",
        "PermissionError",
    }
)


def print_json(value: Any) -> None:
    """Write JSON to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def policy_texts(names: Iterable[str]) -> list[tuple[str, str]]:
    """Read policies given as paths or as names of bundled ones (`default`, `nccl-timeout`, `local/enforce`)."""
    found = []
    for name in names:
        path = Path(name)
        if path.is_file():
            found.append((name, _text(path)))
            continue
        known = bundled_policies()
        if name in known:
            found.append((name, known[name]))
            continue
        near = get_close_matches(name, known, 2)
        short = sorted({min(same, key=len) for same in _same_texts(known)})
        hint = f"did you mean {' or '.join(near)}?" if near else f"bundled: {', '.join(short)}"
        fail(f"no policy {name!r}: neither a file nor a bundled one", hint)
    return found


def _same_texts(known: Mapping[str, str]) -> Iterable[list[str]]:
    """A bundled policy goes by several names."""
    return [[name for name in known if known[name] == text] for text in set(known.values())]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {error}")


def bundled_policies() -> dict[str, str]:
    """Return name → text of the bundled policies, by `topic`, `topic/name` and plain name."""
    found: dict[str, str] = {}
    for topic in sorted(bundled.policies_dir().iterdir(), key=lambda entry: entry.name):
        if not topic.is_dir():
            continue
        for file in sorted(topic.iterdir(), key=lambda entry: entry.name):
            if file.name.endswith(".yaml") and not file.name.endswith(".test.yaml"):
                stem = file.name.removesuffix(".yaml")
                text = file.read_text(encoding="utf-8")
                found[f"{topic.name}/{stem}"] = text
                found.setdefault(stem, text)
    return found


def warn_of_plugins() -> None:
    """Say which plugins are left out: what they look for is not looked for."""
    from jobwatchdog.plugins import installed

    for problem in installed().problems:
        err.print(problem, style="yellow", markup=False)


def state_dir(given: Path | None) -> Path:
    """Return the state directory: the option, $JOBWATCHDOG_STATE, or below the home directory."""
    from jobwatchdog.ledger import state_dir as default

    return (given or default()).expanduser()
