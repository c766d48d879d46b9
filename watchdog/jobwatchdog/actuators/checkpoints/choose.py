"""Looks through a checkpoint folder, newest first, until one is good; remembers why the others were not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobwatchdog.actuators.checkpoints import safetensors_file, torch_file
from jobwatchdog.actuators.checkpoints.info import (
    UNFINISHED,
    BrokenError,
    CheckpointInfo,
    UnfinishedError,
    files_below,
    sizes_and_time,
    step_of,
)
from jobwatchdog.actuators.checkpoints.layouts import Layout, layout_of

DEPTH_MAX = 2  # folders below the root in which checkpoints are looked for
CANDIDATES_MAX = 2_000
FILE_FORMATS = {".pt": "torch", ".pth": "torch", ".ckpt": "torch", ".safetensors": "safetensors"}
PARTS = frozenset({"optimizer", "scheduler", "scaler", "training_args", "adapter_model", "common"})  # never one alone


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that looks like a checkpoint, not judged yet."""

    info: CheckpointInfo
    layout: Layout | None  # None: a single file


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint to go on from (None: no good one) and what was passed over, newest first."""

    found: CheckpointInfo | None
    passed_over: tuple[tuple[Path, str], ...] = ()
    tainted: tuple[CheckpointInfo, ...] = field(default=())  # whole, but made after the fault began

    @property
    def path(self) -> Path | None:
        """Where it lies."""
        return self.found.path if self.found else None

    @property
    def step(self) -> int | None:
        """Its step, where known."""
        return self.found.step if self.found else None


def list_checkpoints(root: Path, *, deep: bool = False, limit: int = 200) -> list[CheckpointInfo]:
    """All checkpoints below the root, newest first, judged; at most `limit` of them."""
    return [judge(candidate, deep=deep) for candidate in candidates(root)[:limit]]


def last_good(
    root: Path | Sequence[Path],
    before_s: float | None = None,
    before_step: int | None = None,
    *,
    deep: bool = False,
    distrusted: Callable[[CheckpointInfo], str | None] = lambda _: None,
) -> Choice:
    """The newest one that is whole and older than the fault: by step where it has one, else by time of completion.

    Newest by time, not by step: after a rollback, files of the abandoned future have higher steps.
    """
    roots = [root] if isinstance(root, Path) else list(root)
    found = {c.info.path: c for each in roots for c in candidates(each)}
    passed: list[tuple[Path, str]] = []
    tainted: list[CheckpointInfo] = []
    for candidate in newest_first(found.values()):
        info = judge(candidate, deep=deep)
        if info.problem is not None:
            passed.append((info.path, info.problem))
        elif (late := _too_late(info, before_s, before_step)) is not None:
            passed.append((info.path, late))
            tainted.append(info)
        elif (why := distrusted(info)) is not None:
            passed.append((info.path, why))
        else:
            return Choice(info, tuple(passed), tuple(tainted))
    return Choice(None, tuple(passed), tuple(tainted))


def check(path: Path, *, deep: bool = False) -> CheckpointInfo:
    """Judges the one that somebody named."""
    if not path.exists():
        return CheckpointInfo(path=path, format="unknown", problem="does not exist")
    candidate = _as_candidate(path)
    if candidate is None:
        return CheckpointInfo(path=path, format="unknown", problem="is no checkpoint of a known format")
    return judge(candidate, deep=deep)


def _too_late(info: CheckpointInfo, before_s: float | None, before_step: int | None) -> str | None:
    if before_step is not None and info.step is not None:
        return f"of step {info.step}, the fault began at step {before_step}" if info.step >= before_step else None
    if before_s is not None and info.time_s >= before_s:
        return f"finished {info.time_s - before_s:.1f} s after the fault began"
    return None


def newest_first(found: Iterable[Candidate]) -> list[Candidate]:
    """By time of completion, then step, then name."""
    return sorted(found, key=lambda c: (c.info.time_s, c.info.step or -1, str(c.info.path)), reverse=True)


def candidates(root: Path) -> list[Candidate]:
    """Everything below the root that looks like a checkpoint, newest first."""
    if not root.is_dir():
        return []
    own = layout_of(root)
    if own is not None and own.name != "safetensors" and step_of(root.name) is not None:
        return [c for c in [_as_candidate(root)] if c is not None]
    found: list[Candidate] = []
    _collect(root, DEPTH_MAX, found)
    if not found and own is not None:
        found = [c for c in [_as_candidate(root)] if c is not None]
    return newest_first(found)


def _collect(folder: Path, depth: int, found: list[Candidate]) -> None:
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if not entry.is_symlink()
            )
    except OSError:
        return
    for name, is_folder in names:
        path = folder / name
        if len(found) >= CANDIDATES_MAX:
            return
        candidate = _as_candidate(path)
        if candidate is not None:
            found.append(candidate)
        elif is_folder and depth > 1:
            _collect(path, depth - 1, found)


def _as_candidate(path: Path) -> Candidate | None:
    try:
        if path.is_dir():
            if (layout := layout_of(path)) is None:
                return None
            size, time_s = sizes_and_time(files_below(path))
            info = CheckpointInfo(path=path, format=layout.name, step=step_of(path.name), time_s=time_s, size=size)
            return Candidate(info, layout)
        return _file_candidate(path)
    except OSError:
        return None  # gone meanwhile: the job rotates its checkpoints


def _file_candidate(path: Path) -> Candidate | None:
    """A single file; one with an unfinished name is listed too, to be named when it is passed over."""
    stem = UNFINISHED.sub(".", path.name).rstrip(".")
    if path.name.endswith("-unfinished"):
        return None  # a marker, see _refuse_unfinished
    suffix = path.suffix if path.suffix in FILE_FORMATS else Path(stem).suffix
    bare = path.name.split(".", 1)[0]
    if suffix not in FILE_FORMATS or bare in PARTS or bare.startswith("rng_state") or "-of-" in bare:
        return None
    stat = path.stat()
    return Candidate(
        CheckpointInfo(
            path=path, format=FILE_FORMATS[suffix], step=step_of(path.stem), time_s=stat.st_mtime, size=stat.st_size
        ),
        None,
    )


def judge(candidate: Candidate, *, deep: bool = False) -> CheckpointInfo:
    """Fills in the problem, if any, and the step that the contents state."""
    info, layout = candidate.info, candidate.layout
    try:
        _refuse_unfinished(info.path)
        if layout is not None:
            step = layout.verify(info.path, deep)
        elif info.format == "safetensors":
            step = safetensors_file.metadata_step(safetensors_file.read_header(info.path))
        else:
            torch_file.verify(info.path, deep=deep)
            step = None
    except UnfinishedError as why:
        return replace(info, problem=str(why), unfinished=True)
    except BrokenError as why:
        return replace(info, problem=str(why))
    except OSError as bad:
        return replace(info, problem=f"cannot be read: {bad.strerror or bad}")
    return info if step is None else replace(info, step=step)


def _refuse_unfinished(path: Path) -> None:
    """By its own name, or by a marker that its saver keeps beside it until it is whole (NeMo)."""
    if UNFINISHED.search(path.name):
        raise UnfinishedError("is still being written, or was left so: its name says it")
    for marker in (path.with_name(path.name + "-unfinished"), path.with_name(path.stem + "-unfinished")):
        if marker.exists():
            raise UnfinishedError(f"{marker.name} is beside it: the save did not finish")
