"""When something was seen."""

from __future__ import annotations


def seen_at(stated_s: float | None, now_s: float) -> float | None:
    """The time that the source states, else that of arrival; None in a replay whose lines state none (its clock is 0)."""
    if stated_s is not None:
        return stated_s
    return now_s if now_s > 0 else None
