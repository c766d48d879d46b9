"""The compiled patterns of a catalogue, beside those that find step lines and wrapped messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from jobwatchdog.signals import steps
from jobwatchdog.signals.catalogue import Catalogue, CatalogueError, Problem, Reader
from jobwatchdog.signals.multipattern import ENGINE_VERSION, Matcher, PatternsRefusedError, compile_patterns
from jobwatchdog.signals.wraps import WRAP_TRIGGERS


def pattern_list(catalogue: Catalogue) -> list[str]:
    """Return all patterns of the database in the order of their numbers."""
    return [
        *(signature.trigger or signature.pattern for signature in catalogue.signatures),
        *(trigger for _, trigger in steps.STEP_TRIGGERS),
        *WRAP_TRIGGERS,
    ]


def database_key(catalogue: Catalogue) -> str:
    """Return a name under which a compiled database may be kept."""
    digest = hashlib.sha256("\0".join([ENGINE_VERSION, *pattern_list(catalogue)]).encode())
    return digest.hexdigest()[:32]


def compile_database(catalogue: Catalogue) -> bytes:
    """Compile the database of a catalogue; raise CatalogueError with every pattern that the engine cannot serve."""
    try:
        database = compile_patterns(pattern_list(catalogue))
    except PatternsRefusedError as error:
        found = [(catalogue.signatures[i], why) for i, why in error.refused if i < len(catalogue.signatures)]
        if not found:
            raise
        problems = [Problem(s.file, s.line, f"signature {s.id}: pattern {s.pattern!r} refused: {w}") for s, w in found]
        raise CatalogueError(problems) from error
    if problems := list(lost_examples(catalogue, Matcher(database))):
        raise CatalogueError(problems)
    return database


_PADS: Final = ("", *("x" * length + " " for length in (3, 12, 24, 60)))


def lost_examples(catalogue: Catalogue, matcher: Matcher) -> Iterator[Problem]:
    """Yield the signatures whose own examples the engine does not find.

    Hyperscan loses matches of some patterns that begin with an unbounded class, or of their neighbours.
    """
    for number, one in enumerate(catalogue.signatures):
        reader = Reader(one)
        for line in (pad + example for example in one.matches for pad in _PADS):
            if number not in matcher.numbers(line.encode() + b"\n") and reader.read(line):
                words = f"the multi-pattern engine loses {line!r}; bound the classes at the pattern's start"
                yield Problem(one.file, one.line, f"signature {one.id}: {words}, as `\\S{{1,200}}` for `\\S+`")
                break
