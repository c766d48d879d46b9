"""`run`, `attach`, `demo`: watch a live job."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jobwatchdog.cli.console import Exit, Format, err, fail, plain_errors, policy_texts, state_dir, warn_of_plugins


class Runtime(StrEnum):
    """Where supervisor and agent live."""

    RAY = "ray"
    PLAIN = "plain"


_POLICY = Annotated[list[str] | None, typer.Option("--policy", "-p", help="Policy file or bundled name. Repeatable.")]
_STATE = Annotated[Path | None, typer.Option("--state", help="The state directory; default $JOBWATCHDOG_STATE.")]
_RUNTIME = Annotated[
    Runtime, typer.Option("--runtime", help="ray: actors on an embedded Ray; plain: this process alone.")
]
_CHECKPOINTS = Annotated[list[Path] | None, typer.Option("--checkpoints", help="Where the job keeps checkpoints.")]
_CATALOGUE = Annotated[list[Path] | None, typer.Option("--catalogue", help="A site's catalogue of log signatures.")]
_FORMAT = Annotated[Format, typer.Option("--format", "-f", help="Messages for people, or JSON lines on stderr.")]
_LABEL = Annotated[list[str] | None, typer.Option("--label", help="name=value, for a policy's `select`. Repeatable.")]
_LEDGER = Annotated[
    str,
    typer.Option(
        "--ledger", metavar="URL",
        help="A database of this job's own, such as postgresql://…; default: a file in the job's folder.",
    ),
]  # fmt: skip
_ADDRESS = Annotated[str | None, typer.Option("--address", help="A running Ray cluster instead of an embedded one.")]


@plain_errors
def run(
    command: Annotated[list[str], typer.Argument(help="The job's command, after --.", metavar="-- CMD…")],
    policy: _POLICY = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="The job's name; the same name goes on with it.")
    ] = None,
    checkpoints: _CHECKPOINTS = None,
    state: _STATE = None,
    runtime: _RUNTIME = Runtime.RAY,
    address: _ADDRESS = None,
    catalogue: _CATALOGUE = None,
    label: _LABEL = None,
    ledger: _LEDGER = "",
    format: _FORMAT = Format.TEXT,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the job's own output.")] = False,
) -> None:
    """Start a job and look after it until it ends for good.

    Without --policy nothing is done about what breaks, it is only said. Ctrl-C is passed on to the job, which is then
    not restarted; a second Ctrl-C kills it. If the watchdog dies the job goes on: the same `run --name` finds it again.
    """
    from jobwatchdog.shell.spec import WatchSpec

    if shutil.which(command[0]) is None:
        fail(f"{command[0]!r} cannot be run: not found, or not executable", "give the command after --, as in a shell")
    root = state_dir(state)
    chosen = _job_name(name, command)
    spec = WatchSpec(
        name=chosen,
        state_dir=str(root),
        command=tuple(command),
        cwd=str(Path.cwd()),
        env=dict(os.environ),
        policies=tuple(policy_texts(policy or ["default"])),
        checkpoints=tuple(str(path.absolute()) for path in checkpoints or []),
        catalogues=tuple(str(path.absolute()) for path in catalogue or []),
        labels=_labels(label),
        ledger_url=ledger,
    )
    if (code := _known_end(root, chosen)) is not None:
        raise typer.Exit(code)
    if policy is None:
        err.print("no --policy: the bundled default only observes; `jobwatchdog policy init` writes one", style="dim")
    raise typer.Exit(_watch(spec, runtime, address, format, show=not quiet))


@plain_errors
def attach(
    targets: Annotated[list[str], typer.Argument(help="pid:PID, log:PATH… or job:NAME.", metavar="TARGET…")],
    policy: _POLICY = None,
    checkpoints: _CHECKPOINTS = None,
    state: _STATE = None,
    runtime: _RUNTIME = Runtime.RAY,
    address: _ADDRESS = None,
    catalogue: _CATALOGUE = None,
    label: _LABEL = None,
    ledger: _LEDGER = "",
    format: _FORMAT = Format.TEXT,
    from_end: Annotated[bool, typer.Option("--from-end", help="Only what is written from now on.")] = False,
) -> None:
    """Watch a job that runs already; neither its script nor its environment is changed.

    pid:PID takes a process tree of this machine, which a policy may restart in its place. log:PATH… only looks.
    job:NAME goes on with a job that `run` started. Ctrl-C ends the watching, the job goes on.
    """
    from jobwatchdog.shell.spec import WatchSpec

    kinds = {target.partition(":")[0] for target in targets}
    if len(kinds) != 1 or (kinds != {"log"} and len(targets) > 1):
        fail(f"cannot attach to {' '.join(targets)}", "one pid:PID, one job:NAME, or any number of log:PATH")
    kind, value = next(iter(kinds)), targets[0].partition(":")[2]
    base = WatchSpec(
        name=value,
        state_dir=str(state_dir(state)),
        policies=tuple(policy_texts(policy or ["default"])),
        checkpoints=tuple(str(path.absolute()) for path in checkpoints or []),
        catalogues=tuple(str(path.absolute()) for path in catalogue or []),
        labels=_labels(label),
        ledger_url=ledger,
        from_start=not from_end,
    )
    from dataclasses import replace

    if kind == "pid":
        if not value.isdigit():
            fail(f"{value!r} is no process id", "for example: jobwatchdog attach pid:4711")
        spec = replace(base, name=f"pid-{value}", pid=int(value))
    elif kind == "log":
        paths = [str(Path(target.partition(":")[2]).absolute()) for target in targets]
        spec = replace(base, name="log-" + re.sub(r"[^A-Za-z0-9._-]", "_", Path(paths[0]).name), logs=tuple(paths))
    elif kind == "job":
        if not (Path(base.state_dir) / "jobs" / value / "spec.json").exists():
            fail(f"no job {value!r} in {base.state_dir}", "see: jobwatchdog status")
        spec = base
    elif kind in ("slurm", "ray"):
        fail(f"{kind}: targets are not supported by this version", "use pid:PID on the node, or log:PATH")
    else:
        fail(f"unknown target {targets[0]!r}", "write pid:PID, log:PATH or job:NAME")
    raise typer.Exit(_watch(spec, runtime, address, format, show=False, owns=False))


def _known_end(root: Path, name: str) -> int | None:
    """A job of this name is over for good: say so, instead of starting or watching anything; its exit code."""
    from jobwatchdog.actuators.local.launcher import LocalLauncher
    from jobwatchdog.model import JobId

    launcher = LocalLauncher(root)
    attempt = launcher.latest_attempt(JobId(name))
    if attempt is None:
        return None
    state = launcher.state(JobId(name), attempt)
    by = launcher.cancelled(JobId(name))
    if by is not None and not state.alive:
        said, code = f"was ended by {by}", int(Exit.CANCELLED)
    elif state.succeeded:
        said, code = f"has finished with exit code 0 in attempt {attempt}", int(Exit.OK)
    else:
        return None
    err.print(f"the job {name!r} {said}: nothing is started; another --name starts it anew", style="yellow")
    return code


def _watch(
    spec: object, runtime: Runtime, address: str | None, format: Format, *, show: bool, owns: bool = True
) -> int:
    from jobwatchdog.cli.live import watch_live
    from jobwatchdog.policy.load import load_policy
    from jobwatchdog.shell.spec import WatchSpec

    assert isinstance(spec, WatchSpec), "built by the commands above"
    for file, text in spec.policies:
        load_policy(text, file)  # mistakes are told before anything is started
    warn_of_plugins()
    return asyncio.run(watch_live(spec, ray=runtime is Runtime.RAY, address=address, json_lines=format is Format.JSON,
                                  show_output=show, owns_job=owns))  # fmt: skip


def _job_name(name: str | None, command: list[str]) -> str:
    if name is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            fail(f"{name!r} cannot be a job's name", "letters, digits, dots, hyphens and underscores, at most 64")
        return name
    if not command:
        fail("no command given", "for example: jobwatchdog run -- torchrun train.py")
    script = next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name)
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{script}-{time.strftime('%m%d-%H%M%S')}")


def _labels(given: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            fail(f"{pair!r} is no label", "write --label tier=pretrain")
        found[name] = value
    return found


class Fault(StrEnum):
    """What the demo breaks."""

    KILL = "kill"
    STOP = "stop"
    OOM = "oom-after-checkpoint"
    NAN = "nan"


@plain_errors
def demo(
    fault: Annotated[Fault, typer.Option("--fault", help="What breaks.")] = Fault.KILL,
    runtime: _RUNTIME = Runtime.RAY,
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep the job's folder here.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=30, help="Steps of the training job.")] = 60,
) -> None:
    """Break a real two-rank training job, and watch it being restored from its last good checkpoint."""
    import tempfile

    from jobwatchdog.cli.demo import run_demo

    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        code = asyncio.run(run_demo(fault.value, keep.absolute(), ray=runtime is Runtime.RAY, steps=steps))
    else:
        with tempfile.TemporaryDirectory(prefix="jobwatchdog-demo-", ignore_cleanup_errors=True) as folder:
            code = asyncio.run(run_demo(fault.value, Path(folder), ray=runtime is Runtime.RAY, steps=steps))
    raise typer.Exit(code)


__all__ = ["Exit", "attach", "demo", "run", "sys"]
