"""One pass over a block for all patterns: which pattern, and where its match ends.

Hyperscan (Vectorscan on Arm) reports (pattern, end). Captures are taken afterwards, on the one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.metadata import version

import hyperscan

ENGINE_VERSION = version("hyperscan")
_NAMED = re.compile(r"\(\?P<\w+>")


class PatternsRefusedError(ValueError):
    """The multi-pattern engine cannot take some patterns; `refused` has the index and the reason of each."""

    def __init__(self, refused: Sequence[tuple[int, str]]) -> None:
        self.refused = tuple(refused)
        super().__init__("; ".join(f"pattern {index}: {reason}" for index, reason in refused))


def _expression(pattern: str) -> bytes:
    return _NAMED.sub("(", pattern).encode()


def _compile(patterns: Sequence[str], flags: int) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[_expression(pattern) for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[flags] * len(patterns),
    )
    return database


def _refusal(pattern: str) -> str:
    try:
        _compile([pattern], _FLAGS)
    except hyperscan.error as reason:
        return str(reason)
    return ""


# `^` and `$` mean line ends; `.` never crosses a line, as in RE2.
_FLAGS = hyperscan.HS_FLAG_MULTILINE


def compile_patterns(patterns: Sequence[str]) -> bytes:
    """Compile to bytes that `Matcher` loads at once on the same kind of processor.

    Raises PatternsRefusedError with every pattern that the engine cannot take.
    """
    try:
        database = _compile(patterns, _FLAGS)
    except hyperscan.error as error:
        refused = [(index, reason) for index, pattern in enumerate(patterns) if (reason := _refusal(pattern))]
        if refused:
            raise PatternsRefusedError(refused) from error
        raise
    return bytes(hyperscan.dumpb(database))


class Matcher:
    """A loaded database. Not shared between threads: it owns its scratch space."""

    def __init__(self, database: bytes) -> None:
        self._database = hyperscan.loadb(database, hyperscan.HS_MODE_BLOCK)
        self._database.scratch = hyperscan.Scratch(self._database)

    def scan(self, block: bytes, on_match: Callable[[int, int, int, int, object], bool | None]) -> None:
        """Call `on_match(pattern, 0, end, flags, None)` for each match, in order of `end`."""
        self._database.scan(block, match_event_handler=on_match)

    def numbers(self, text: bytes) -> set[int]:
        """Return the numbers of the patterns that are found."""
        found: set[int] = set()

        def note(number: int, _start: int, _end: int, _flags: int, _context: object) -> None:
            found.add(number)

        self.scan(text, note)
        return found
