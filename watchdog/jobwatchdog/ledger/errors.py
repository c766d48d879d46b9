"""What can go wrong with the ledger, in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError


class LedgerError(RuntimeError):
    """The ledger cannot be read or written. Nothing may be acted on without it."""


class StaleEpoch(LedgerError):  # noqa: N818 (an event in the life of a supervisor, not a mistake)
    """A newer supervisor has taken over; this one must do nothing more."""

    def __init__(self, mine: int, newest: int, owner: str) -> None:
        super().__init__(
            f"this supervisor holds epoch {mine}, but {owner or 'another'} took epoch {newest}: "
            "it was replaced while it was away and may do nothing more; stop it"
        )
        self.mine, self.newest = mine, newest


_ADVICE = (
    (
        ("malformed", "not a database", "disk i/o error", "file is encrypted"),
        (
            "the file is damaged. Stop the watchdog, move the file (and its -wal, -shm) aside to keep it as evidence, "
            "and start again; `sqlite3 FILE .recover` may save what it held"
        ),
    ),
    (
        ("locked", "busy"),
        (
            "another process keeps it locked. Look for a second watchdog on the same state directory, or a database "
            "browser with an open transaction; on a network file system use PostgreSQL instead"
        ),
    ),
    (
        ("disk is full", "no space left"),
        "the disk is full. Free space where the ledger lies; nothing is acted on until it can be written",
    ),
    (
        ("readonly", "read-only", "permission denied"),
        (
            "it cannot be written. Check owner and permissions of the file and of its folder, "
            "or name another folder with JOBWATCHDOG_STATE"
        ),
    ),
    (
        ("unable to open",),
        (
            "the file cannot be opened. Check that its folder exists and that you may read and write in it, "
            "or name another folder with JOBWATCHDOG_STATE"
        ),
    ),
    (
        ("no such table", "no such column", "does not exist"),
        "it lacks tables of this release. Open it once with `jobwatchdog run` or `attach`, or name the right file",
    ),
)


def advice(words: str) -> str:
    """What to do about a database's own words."""
    lower = words.lower()
    for needles, text in _ADVICE:
        if any(needle in lower for needle in needles):
            return text
    return "see the words above; the ledger must work before the watchdog may act"


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn a database's exception into a `LedgerError` that says which ledger, what, and what to do."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        words = str(getattr(error, "orig", None) or error).strip()
        raise LedgerError(f"ledger {where}: {words}: {advice(words)}") from error
