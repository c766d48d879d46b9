"""Tracebacks that Python itself says it ignores: destructors and exit handlers in the teardown of a healthy run."""

from __future__ import annotations

from typing import Final

from jobwatchdog.model import LogMatch, Signal

TAG: Final = "ignored-traceback"
TRACEBACK_LINES_MAX: Final = 60
STREAMS_MAX: Final = 4096


class IgnoredTracebacks:
    """Knows which exception ends a traceback that began with "Exception ignored in"."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str | None, int | None], int] = {}  # file and rank → line
        self._ended: tuple[str | None, int] | None = None  # one line may match two signatures

    def ends_with(self, signal: Signal) -> bool:
        """Note the beginning of such a traceback; return whether this line is the exception at the end of one."""
        if not isinstance(signal, LogMatch) or signal.origin.line is None:
            return False
        stream, line = (signal.origin.file, signal.origin.rank), signal.origin.line
        if TAG in signal.tags:
            if len(self._begun) < STREAMS_MAX:
                self._begun[stream] = line
            return False
        if "exception" not in signal.tags:
            return False
        if self._ended == (stream[0], line):
            return True
        begun = self._begun.pop(stream, None)
        if begun is None or line - begun > TRACEBACK_LINES_MAX:
            return False
        self._ended = (stream[0], line)
        return True
