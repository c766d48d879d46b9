"""What is known of one checkpoint, and the small helpers that all formats share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILES_MAX = 200_000  # files of one checkpoint that are looked at; a larger one is judged by these

# In-progress names: written by savers that rename when whole, or that keep a marker beside an unfinished one.
UNFINISHED = re.compile(
    r"(?i)(\.|_|-)(tmp|temp|temporary|partial|incomplete|inprogress|unfinished|writing)(\.|_|-|$|\d)|^tmp[-_.]|\.tmp$"
)
STEP = re.compile(
    r"(?i)(?:^|[^a-z])(?:iter|iteration|global_?step|step|checkpoint|ckpt|batch|ba|ep\d+-ba|update)s?[-_=]?0*(\d{1,12})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint. `problem` says why it is not usable; `unfinished` that it was (or still is) being written."""

    path: Path
    format: str  # "torch", "dcp", "safetensors", "hf", "megatron", "nemo", "deepspeed"
    step: int | None = None
    time_s: float = 0.0  # when its last file was finished
    size: int = 0
    problem: str | None = None
    unfinished: bool = False

    @property
    def complete(self) -> bool:
        """Whole and readable, as far as was looked."""
        return self.problem is None


class BrokenError(Exception):
    """The checkpoint cannot be loaded; the text names the file and the fault."""


class UnfinishedError(Exception):
    """The checkpoint is not whole yet, by its own account."""


def step_of(name: str) -> int | None:
    """The step that a file or folder name states; the last one where it states several."""
    found = STEP.findall(name)
    if found:
        return int(found[-1])
    return int(name) if re.fullmatch(r"\d{1,12}", name) else None


def files_below(folder: Path) -> list[os.DirEntry[str]]:
    """All regular files of a folder and two levels below it, without following links; sorted by path."""
    found: list[os.DirEntry[str]] = []
    level = [str(folder)]
    for _ in range(3):
        deeper: list[str] = []
        for path in level:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        deeper.append(entry.path)
                    elif len(found) < FILES_MAX:
                        found.append(entry)
        level = deeper
    return sorted(found, key=lambda entry: entry.path)


def sizes_and_time(files: Iterable[os.DirEntry[str]]) -> tuple[int, float]:
    """Bytes in all and the time at which the last file was finished."""
    size, newest = 0, 0.0
    for entry in files:
        try:
            stat = entry.stat()
        except OSError:
            continue  # deleted meanwhile, by the job's own rotation
        size += stat.st_size
        newest = max(newest, stat.st_mtime)
    return size, newest


def need(path: Path, of: str = "") -> Path:
    """The file must be there and hold something."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise BrokenError(f"{path.name} is missing{of}") from None
    except OSError as bad:
        raise BrokenError(f"{path.name} cannot be read: {bad.strerror}") from None
    if size == 0:
        raise BrokenError(f"{path.name} is empty{of}")
    return path
