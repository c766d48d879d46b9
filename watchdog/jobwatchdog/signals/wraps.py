"""Messages that a terminal broke at its width, or that went on without a prefix: the lines put together again.

A hit line is read at once, alone. What only the whole message says follows when its last line is known, so
that a live log loses no time and a log cut into other blocks gives the same signals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from jobwatchdog.model import Origin

WRAP_LINES_MAX: Final = 12
WRAP_WIDTH_MIN: Final = 60
WRAP_WIDTH_MAX: Final = 8192

# A record of C++ logging, or of a scheduler: where a terminal may have wrapped a message that matters.
WRAP_TRIGGERS: Final = (r"\.cpp:\d+\] ", r"slurmstepd: error: ", r"NCCL WARN ")
_NEW_RECORD: Final = re.compile(
    rb"\s*(?:\[|\d{4}-\d\d-\d\d|[A-Z][a-z]{2} +\d+ \d\d:|Traceback|File \"|slurmstepd:|srun:)"
)


def may_wrap(width: int) -> bool:
    """Whether a line of `width` bytes may go on below."""
    return WRAP_WIDTH_MIN <= width <= WRAP_WIDTH_MAX


@dataclass(slots=True)
class Join:
    """One message being put together. `at` is where its next line begins in the block in hand."""

    parts: list[bytes]
    at: int
    number: int
    origin: Origin
    time_s: float | None
    known: frozenset[int] = field(default_factory=frozenset)  # patterns that its first line gave
    closed: bool = False

    def grow(self, text: bytes) -> None:
        """Take lines of the block until the message is complete or the block ends."""
        width = len(self.parts[0])
        while not self.closed and self.at < len(text):
            end = text.find(b"\n", self.at)
            end = len(text) if end < 0 else end
            line = text[self.at : min(end, self.at + WRAP_WIDTH_MAX)]
            if not line.strip() or _NEW_RECORD.match(line) or b".cpp:" in line[:120]:
                self.closed = True
                return
            self.parts.append(line)
            self.at = end + 1
            self.closed = len(line) < width * 3 // 4 or len(self.parts) > WRAP_LINES_MAX

    def joined(self) -> bytes | None:
        """Return the message as one line; None if it was never more than one."""
        parts = self.parts
        if len(parts) == 1:
            return None
        even = all(len(part) == len(parts[0]) for part in parts[1:-1])
        whole = b"".join(parts) if even else b" ".join(part.strip() for part in parts)
        return whole.rstrip() + b"\n"
