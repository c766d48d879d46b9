"""Durations as people write them: `90s`, `15m`, `1h30m`, `7d`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: object) -> float:
    """Return seconds; ValueError for anything that is not a duration, a bare number included."""
    if isinstance(text, str) and _WHOLE.fullmatch(text.strip()):
        return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"a duration needs a unit: write {text}s, {text}m or {text}h")
    raise ValueError(f"{text!r} is no duration; write for example 90s, 15m, 1h30m, 7d")


def format_duration(seconds: float) -> str:
    """Write seconds the short way: 5400 → `1h30m`."""
    left, parts = seconds, []
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _UNIT_S[unit])
        if count:
            parts.append(f"{int(count)}{unit}")
    if left or not parts:
        parts.append(f"{left:g}s")
    return "".join(parts)


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d))+$"}),
]
