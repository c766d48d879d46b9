"""From what a user names and what a job prints to the folders in which its checkpoints lie."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from jobwatchdog.actuators.checkpoints.choose import check

NEVER = frozenset(map(Path, ("/", "/tmp", "/home", "/root", "/dev", "/proc", "/sys", "/usr", "/var", "/etc")))  # noqa: S108


def roots(paths: Iterable[Path], cwd: Path) -> list[Path]:
    """A checkpoint's own path stands for the folder around it; too wide a folder is left out."""
    found: dict[Path, None] = {}
    for path in paths:
        whole = (cwd / path).absolute()
        folder = whole if whole.is_dir() and not _is_checkpoint(whole) else whole.parent
        if folder.is_dir() and folder not in NEVER:
            found[folder] = None
    return list(found)


def _is_checkpoint(folder: Path) -> bool:
    return check(folder).format != "unknown"
