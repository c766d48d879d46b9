"""What a restart's `nccl`, `allocator`, `skip_data` and `env` mean as variables of the next attempt.

Merged with what the user had set, in the syntax of the job's own versions; every choice leaves a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from jobwatchdog.model import Json

Version = tuple[int, ...]

NCCL_PER_COLLECTIVE: Final[Version] = (2, 24)  # a plain `Tree` breaks collectives without a tree from here on
TORCH_NEW_NAME: Final[Version] = (2, 9)  # reads PYTORCH_ALLOC_CONF first
ALLOC_OLD: Final = "PYTORCH_CUDA_ALLOC_CONF"
ALLOC_NEW: Final = "PYTORCH_ALLOC_CONF"
_NCCL_NAMES: Final = {
    "ib_timeout": "NCCL_IB_TIMEOUT", "ib_retry_cnt": "NCCL_IB_RETRY_CNT", "debug": "NCCL_DEBUG",
}  # fmt: skip
# NCCL that a release of PyTorch was built with, where only the latter is known.
_NCCL_OF_TORCH: Final[tuple[tuple[Version, Version], ...]] = (((2, 7), (2, 26)), ((2, 0), (2, 18)), ((1, 8), (2, 7)))


@dataclass(slots=True)
class Overrides:
    """Only the variables that change, and in words why each has its form."""

    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def environment(
    args: Mapping[str, Json],
    own: Mapping[str, str],
    nccl_version: Version | None = None,
    torch_version: Version | None = None,
) -> dict[str, str]:
    """Only the variables that change."""
    return overrides(args, own, nccl_version, torch_version).env


def overrides(
    args: Mapping[str, Json],
    own: Mapping[str, str],
    nccl_version: Version | None = None,
    torch_version: Version | None = None,
) -> Overrides:
    """The variables of the next attempt; `own` is the environment that the user gave the job."""
    out = Overrides()
    _nccl(_mapping(args.get("nccl")), own, nccl_version or _nccl_of(torch_version), out)
    _allocator(_mapping(args.get("allocator")), own, torch_version, out)
    skip = args.get("skip_data")
    if isinstance(skip, int) and not isinstance(skip, bool):
        out.env["JOBWATCHDOG_SKIP_BATCHES"] = str(skip)
    out.env.update({name: _text(value) for name, value in _mapping(args.get("env")).items()})
    return out


def parse_version(text: str) -> Version | None:
    """`2.21.5+cuda12.4` → (2, 21, 5); None for what is no version."""
    numbers: list[int] = []
    for part in text.strip().lstrip("v").split("."):
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers) if len(numbers) > 1 else None


# ---- NCCL -------------------------------------------------------------------------------------------


def _nccl(asked: Mapping[str, Json], own: Mapping[str, str], version: Version | None, out: Overrides) -> None:
    for name, value in asked.items():
        if name == "algo":
            _algo(str(value).lower(), own.get("NCCL_ALGO", ""), version, out)
        else:
            out.env[_NCCL_NAMES.get(name, f"NCCL_{name.upper()}")] = _text(value)


def _algo(asked: str, own: str, version: Version | None, out: Overrides) -> None:
    if version is None:
        # `allreduce:tree` leaves a release before 2.24 without any algorithm, and `Tree` leaves a later one
        # without all-gather: either would break a job that a plain restart may still heal.
        out.notes.append(f"NCCL_ALGO is left as it is: {asked} is written differently before and since NCCL 2.24")
        return
    shown = ".".join(map(str, version))
    if version < NCCL_PER_COLLECTIVE:
        out.env["NCCL_ALGO"] = asked.capitalize()
        out.notes.append(f"NCCL {shown} takes one list for all collectives: {asked.capitalize()}")
        return
    out.env["NCCL_ALGO"] = _per_collective(asked, own)
    out.notes.append(f"NCCL {shown} takes a list for each collective: only all-reduce is changed")


def _per_collective(asked: str, own: str) -> str:
    """Replace the user's choice for all-reduce and keep the one for every other collective.

    The user's own list may come without a collective's name; it holds for those that none names.
    """
    kept = [part.strip() for part in own.split(";") if part.strip()]
    kept = [part for part in kept if part.partition(":")[0].strip().lower() != "allreduce"]
    return ";".join([*kept, f"allreduce:{asked}"])


def _nccl_of(torch: Version | None) -> Version | None:
    if torch is None:
        return None
    return next((nccl for since, nccl in _NCCL_OF_TORCH if torch >= since), None)


# ---- PyTorch's allocator ----------------------------------------------------------------------------


def _allocator(asked: Mapping[str, Json], own: Mapping[str, str], torch: Version | None, out: Overrides) -> None:
    if not asked:
        return
    if torch is None:
        names, why = [ALLOC_NEW, ALLOC_OLD], "PyTorch's release is not known: both names are set"
    elif torch >= TORCH_NEW_NAME:
        names, why = [ALLOC_NEW], "this PyTorch reads PYTORCH_ALLOC_CONF first"
    else:
        names, why = [ALLOC_OLD], "this PyTorch knows PYTORCH_CUDA_ALLOC_CONF only"
    base = own.get(ALLOC_NEW) or own.get(ALLOC_OLD) or ""
    if torch is not None and torch < TORCH_NEW_NAME:
        base = own.get(ALLOC_OLD, "")
    merged = _merged(base, asked)
    out.env.update(dict.fromkeys(names, merged))
    out.notes.append(why + (f", merged with the job's own {base}" if base else ""))


def _merged(own: str, asked: Mapping[str, Json]) -> str:
    """`key:value,key:value`; what was asked for replaces the same key and leaves the rest."""
    pairs = dict(part.split(":", 1) for part in _split(own) if ":" in part)
    pairs.update({name: _text(value) for name, value in asked.items()})
    return ",".join(f"{name}:{value}" for name, value in pairs.items())


def _split(text: str) -> list[str]:
    """At commas, except within brackets: `roundup_power2_divisions:[256:1,512:2]` is one setting."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    return str(value)  # True and False are written as PyTorch reads them
