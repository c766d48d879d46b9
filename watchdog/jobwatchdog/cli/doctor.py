"""`jobwatchdog doctor`: what is missing on this machine, what that disables, and how to mend it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from jobwatchdog.cli.console import Exit, Format, out, plain_errors, print_json, state_dir


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `needed`: without it jobwatchdog does not do its main job."""

    name: str
    ok: bool
    found: str
    without: str
    mend: str
    needed: bool = False


@plain_errors
def doctor(
    format: Annotated[Format, typer.Option("--format", "-f", help="For people or for programs.")] = Format.TEXT,
) -> None:
    """Look for what is missing on this machine, and say what that disables and how to mend it."""
    findings = [check() for check in _CHECKS]
    if format is Format.JSON:
        print_json([{name: getattr(f, name) for name in Finding.__slots__} for f in findings])
    else:
        for f in findings:
            mark = "[green]✓[/]" if f.ok else "[red]✗[/]" if f.needed else "[yellow]–[/]"
            out.print(f"{mark} [bold]{f.name}[/]  {f.found}")
            if not f.ok:
                out.print(f"    without it: {f.without}")
                out.print(f"    to mend: {f.mend}", style="dim")
    raise typer.Exit(Exit.FOUND if any(f.needed and not f.ok for f in findings) else Exit.OK)


def _patterns() -> Finding:
    from jobwatchdog import bundled
    from jobwatchdog.sources.patterns import load_scanner

    try:
        scanner = load_scanner([], bundled.signature_texts())
        found, ok = f"{len(scanner.catalogue.signatures)} signatures", True
    except Exception as error:
        found, ok = f"{type(error).__name__}: {error}", False
    return Finding("log patterns", ok, found, "no log can be read", "reinstall the package", needed=True)


def _plugins() -> Finding:
    from jobwatchdog.plugins import installed

    found = installed()
    names = ", ".join(found.loaded) or "none installed"
    return Finding("plugins", not found.problems, "; ".join(found.problems) or names, "what they add is not looked for",
                   "repair or uninstall the package that brings the plugin")  # fmt: skip


def _state() -> Finding:
    root = state_dir(None)
    try:
        root.mkdir(parents=True, exist_ok=True)
        ok = os.access(root, os.W_OK)
    except OSError:
        ok = False
    mend = "set JOBWATCHDOG_STATE to a folder that you may write"
    return Finding("state directory", ok, str(root), "no job can be run or attached", mend, needed=True)


def _proc() -> Finding:
    ok = Path("/proc/self/stat").exists()
    return Finding(
        "/proc", ok, "readable" if ok else "missing", "no process can be watched", "mount /proc", needed=True
    )


def _module(name: str, without: str, mend: str) -> Callable[[], Finding]:
    def check() -> Finding:
        ok = find_spec(name) is not None
        return Finding(f"Python package {name}", ok, "installed" if ok else "not installed", without, mend)

    return check


def _program(name: str, without: str, mend: str) -> Callable[[], Finding]:
    def check() -> Finding:
        path = shutil.which(name)
        return Finding(name, path is not None, path or "not found", without, mend)

    return check


def _pyspy() -> Finding:
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    if not Path(program).exists():
        return Finding("py-spy", False, "not found", "no stacks are collected from hung ranks", "pip install py-spy")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        done = subprocess.run([program, "dump", "--pid", str(child.pid)], capture_output=True, timeout=20, check=False)
        ok = done.returncode == 0
        found = program if ok else done.stderr.decode(errors="replace").strip().splitlines()[-1:][0:1]
    except subprocess.TimeoutExpired:
        ok, found = False, "no answer in 20 s"
    finally:
        child.kill()
        child.wait()
    mend = "allow ptrace: run as root, or sysctl kernel.yama.ptrace_scope=0, or --cap-add SYS_PTRACE"
    return Finding("py-spy", ok, str(found), "no stacks are collected from hung ranks", mend)


def _kmsg() -> Finding:
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.close(handle)
        ok = True
    except OSError:
        ok = False
    without = "XID and OOM lines of the kernel are seen only in log files that are given"
    return Finding("/dev/kmsg", ok, "readable" if ok else "not readable", without, "run as root or in group adm")


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _patterns,
    _plugins,
    _state,
    _proc,
    _pyspy,
    _module("ray", "the watchdog runs in one process (--runtime plain)", "pip install ray"),
    _module("torch", "the demo uses plain processes instead of PyTorch", "pip install torch"),
    _kmsg,
    _program("nvidia-smi", "no GPU readings are collected", "install the NVIDIA driver"),
    _program("scontrol", "Slurm jobs cannot be watched or requeued", "install the Slurm client programs"),
    _program("sminfo", "the InfiniBand subnet manager cannot be asked", "apt-get install infiniband-diags"),
    _program("journalctl", "the journal is not read", "install systemd, or give log files"),
    _program("rg", "the replay benchmark has no peer to compare with", "apt-get install ripgrep"),
)
