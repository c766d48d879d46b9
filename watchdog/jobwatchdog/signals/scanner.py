"""Bytes of many logs → signals, in one pass; only hit lines cost Python time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from jobwatchdog.model import NO_JOB, JobId, LogMatch, Origin, Signal
from jobwatchdog.signals import steps
from jobwatchdog.signals.catalogue import Catalogue, Reader, Signature
from jobwatchdog.signals.database import compile_database, database_key, pattern_list
from jobwatchdog.signals.multipattern import Matcher
from jobwatchdog.signals.prefixes import Prefixed, origin_from_path, split_prefix
from jobwatchdog.signals.text import decode, strip_ansi, unwrap, virtual_lines
from jobwatchdog.signals.timestamps import TimeState, parse_time
from jobwatchdog.signals.wraps import Join, may_wrap

__all__ = ["Scanner", "Stats", "Stream", "StreamInfo", "compile_database", "database_key", "pattern_list"]

LINE_BYTES_MAX: Final = 1 << 20  # a longer line is looked at in pieces of this size
TEXT_CHARS_MAX: Final = 2000
WINDOW_BYTES: Final = 8192  # of a long line, what surrounds a hit
LOOKBACK_LINES_MAX: Final = 40  # how far up a line without a time may borrow one
LOOKBACK_BYTES_MAX: Final = 16 << 10
LOOKBACK_LINE_BYTES: Final = 400
REPEATS_FULL: Final = 100  # equal matches of a stream passed on one by one; after that at powers of two
REPEAT_KEYS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A log stream, and what is known of it beforehand. `hint_s`: a time not before its last line."""

    file: str
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    job: JobId = NO_JOB
    hint_s: float | None = None


@dataclass(slots=True)
class Stats:
    """What was read. `cut_lines` were longer than LINE_BYTES_MAX, `repeats` are equal matches left out."""

    lines: int = 0
    n_bytes: int = 0
    hits: int = 0
    cut_lines: int = 0
    repeats: int = 0


@dataclass(slots=True)
class Stream:
    """The state of one stream between blocks."""

    info: StreamInfo
    origin: Origin
    tail: bytes = b""
    line: int = 1  # number of the line that comes next
    times: TimeState = field(default_factory=TimeState)
    steps: steps.StepState = field(default_factory=steps.new_state)
    seen: OrderedDict[tuple[object, ...], int] = field(default_factory=OrderedDict)
    tail_cut: bool = False
    above: bytes = b""  # the last text before the block in hand
    looked_back_to: int = 0  # offset in the block in hand: above this no time is to be found that is not known yet
    joins: list[Join] = field(default_factory=list)


@dataclass(slots=True)
class _Line:
    """One hit line of the block in hand: its bounds in the block and the patterns that hit it."""

    start: int
    end: int
    at: int  # end of the first hit
    patterns: list[int]


class Scanner:
    """Feeds blocks of streams through the patterns. Not shared between threads."""

    def __init__(self, catalogue: Catalogue, *, database: bytes | None = None) -> None:
        self.catalogue = catalogue
        self.stats = Stats()
        self._matcher = Matcher(database if database is not None else compile_database(catalogue))
        self._signatures: list[Signature] = list(catalogue.signatures)
        self._readers: list[Reader | None] = [None] * len(self._signatures)  # made when first needed
        self._triggers = [parser for parser, _ in steps.STEP_TRIGGERS]
        self._wrap_from = len(self._signatures) + len(self._triggers)

    def open(self, info: StreamInfo) -> Stream:
        """Begin a stream; its path may tell rank and node."""
        said = origin_from_path(info.file)
        origin = Origin(
            file=info.file,
            rank=info.rank if info.rank is not None else said.rank,
            local_rank=info.local_rank if info.local_rank is not None else said.local_rank,
            node=info.node or said.node,
        )
        return Stream(info, origin, times=TimeState(hint_s=info.hint_s))

    def feed(self, stream: Stream, block: bytes) -> list[Signal]:
        """Take the next bytes of a stream; lines that are not yet whole wait for the next call."""
        self.stats.n_bytes += len(block)
        data = stream.tail + block if stream.tail else block
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        stream.tail = data[cut:]
        found: list[Signal] = []
        if cut:
            found = self._whole(stream, data[:cut] if cut < len(data) else data)
        while len(stream.tail) > LINE_BYTES_MAX:
            piece, stream.tail = stream.tail[:LINE_BYTES_MAX], stream.tail[LINE_BYTES_MAX:]
            found += self._piece(stream, piece)
        return found

    def finish(self, stream: Stream) -> list[Signal]:
        """The stream ended: a last line without a line break is a line too."""
        found: list[Signal] = []
        if stream.tail:
            tail, stream.tail = stream.tail, b""
            found, stream.line = self._scan(stream, tail + b"\n")
            self.stats.lines += 1
        for join in stream.joins:
            join.closed = True
        return [*found, *self._joined(stream, b"", 0)]

    def _piece(self, stream: Stream, piece: bytes) -> list[Signal]:
        if not stream.tail_cut:
            self.stats.cut_lines += 1
        stream.tail_cut = True
        return self._scan(stream, piece)[0]

    def _whole(self, stream: Stream, data: bytes) -> list[Signal]:
        """Scan whole lines; lines beyond the limit go in pieces, cut at the same places in any chunking."""
        found: list[Signal] = []
        at = 0
        while len(data) - at > LINE_BYTES_MAX:
            end = at
            while len(data) - end > LINE_BYTES_MAX:
                limit = end + LINE_BYTES_MAX + 1
                stop = max(data.rfind(b"\n", end, limit), data.rfind(b"\r", end, limit))
                if stop < 0:
                    break
                end = stop + 1
            if len(data) - end <= LINE_BYTES_MAX:
                break
            if end > at:
                found += self._lines(stream, data[at:end])
            found += self._piece(stream, data[end : end + LINE_BYTES_MAX])
            at = end + LINE_BYTES_MAX
        return found + self._lines(stream, data[at:] if at else data)

    def _lines(self, stream: Stream, data: bytes) -> list[Signal]:
        stream.tail_cut = False
        first = stream.line
        found, stream.line = self._scan(stream, data)
        self.stats.lines += stream.line - first
        return found

    def _scan(self, stream: Stream, data: bytes) -> tuple[list[Signal], int]:
        """Return what whole lines say, and the number of the line after them."""
        clean = strip_ansi(unwrap(data))
        text = virtual_lines(clean)
        hits: list[tuple[int, int]] = []
        append = hits.append
        self._matcher.scan(text, lambda number, _start, end, _flags, _context: append((end, number)))
        found: list[Signal] = []
        counted, number = 0, stream.line
        for hit in _hit_lines(text, hits):
            number += clean.count(b"\n", counted, hit.start)
            counted = hit.start
            if stream.joins:
                found += self._joined(stream, text, hit.start)
            found += self._read(stream, text, hit, number)
        if stream.joins:
            found += self._joined(stream, text, len(text))
        self._leave(stream, text)
        return found, number + clean.count(b"\n", counted)

    def _leave(self, stream: Stream, text: bytes) -> None:
        """Keep what the next block may look back to; offsets become those of the next block."""
        size = len(text)
        stream.above = text[-LOOKBACK_BYTES_MAX:] if size >= LOOKBACK_BYTES_MAX else stream.above + text
        stream.above = stream.above[-LOOKBACK_BYTES_MAX:]
        stream.looked_back_to -= size
        for join in stream.joins:
            join.at -= size

    def _joined(self, stream: Stream, text: bytes, before: int) -> list[Signal]:
        """What messages over several lines say as a whole, of those that are complete at offset `before`."""
        found: list[Signal] = []
        open_still: list[Join] = []
        for join in stream.joins:
            join.grow(text)
            if not join.closed or join.at > before:
                open_still.append(join)
            elif (whole := join.joined()) is not None:
                extra = self._matcher.numbers(whole)
                line = decode(whole)
                found += [
                    match
                    for pattern in sorted(extra - join.known)
                    if pattern < len(self._signatures)
                    and (match := self._match(stream, pattern, line, join.origin, join.time_s)) is not None
                ]
        stream.joins = open_still
        return found

    def _read(self, stream: Stream, text: bytes, hit: _Line, number: int) -> list[Signal]:
        start, end = hit.start, hit.end
        if end - start > WINDOW_BYTES:
            start, end = max(start, hit.at - WINDOW_BYTES // 2), min(end, hit.at + WINDOW_BYTES // 2)
        line = decode(text[start:end])
        prefixed = split_prefix(line)
        origin = _origin(stream.origin, prefixed, number)
        time_s = parse_time(line, stream.times)
        if time_s is None:
            time_s = _borrowed_time(stream, text, hit.start)
        stream.looked_back_to = hit.start
        self.stats.hits += 1
        found: list[Signal] = []
        parsers: set[str] = set()
        known: set[int] = set()
        for pattern in hit.patterns:
            if pattern >= self._wrap_from:
                continue
            if pattern >= len(self._signatures):
                parsers.add(self._triggers[pattern - len(self._signatures)])
            elif (match := self._match(stream, pattern, line, origin, time_s)) is not None:
                found.append(match)
                known.add(pattern)
        if hit.patterns[-1] >= self._wrap_from and may_wrap(hit.end - hit.start):
            first = text[hit.start : hit.end]
            stream.joins.append(Join([first], hit.end + 1, number, origin, time_s, frozenset(known)))
        for parser in sorted(parsers):
            for signal in steps.parse_trigger(parser, prefixed.rest, stream.steps):
                _place(signal, stream.info.job, time_s, _with_rank(origin, signal))
                found.append(signal)
        return found

    def _match(self, stream: Stream, pattern: int, line: str, origin: Origin, time_s: float | None) -> LogMatch | None:
        signature = self._signatures[pattern]
        reader = self._readers[pattern]
        if reader is None:
            reader = self._readers[pattern] = Reader(signature)
        match = reader.read(line)
        if match is None:
            return None
        fields = {name: value for name, value in match.groupdict().items() if value is not None}
        repeats = self._count(stream, (signature.id, origin.rank, *fields.values()))
        if repeats > REPEATS_FULL:
            if repeats & (repeats - 1):
                self.stats.repeats += 1
                return None
            fields["repeats"] = str(repeats)
        return LogMatch(
            job=stream.info.job,
            t_s=time_s,
            origin=origin,
            signature=signature.id,
            kind=signature.kind,
            role=signature.role,
            text=line[:TEXT_CHARS_MAX].strip(),
            fields=fields,
            cause_class=signature.cause_class,
            restart_helps=signature.restart_helps,
            confidence=signature.confidence,
            tags=signature.tags,
        )

    def _count(self, stream: Stream, key: tuple[object, ...]) -> int:
        seen = stream.seen
        count = seen.pop(key, 0) + 1
        seen[key] = count
        if len(seen) > REPEAT_KEYS_MAX:
            seen.popitem(last=False)
        return count


def _place(signal: Signal, job: JobId, time_s: float | None, origin: Origin) -> None:
    """Complete a signal that its parser has just made and nobody else has seen: `replace` would double its cost."""
    place = object.__setattr__
    place(signal, "job", job)
    place(signal, "t_s", time_s)
    place(signal, "origin", origin)


def _with_rank(origin: Origin, signal: Signal) -> Origin:
    # A parser that knows more than the prefix (a rank in the line) keeps it.
    own = signal.origin
    if own.rank is None and own.node is None and own.local_rank is None:
        return origin
    return replace(
        origin,
        rank=own.rank if own.rank is not None else origin.rank,
        local_rank=own.local_rank if own.local_rank is not None else origin.local_rank,
        node=own.node or origin.node,
    )


def _hit_lines(text: bytes, hits: list[tuple[int, int]]) -> Iterator[_Line]:
    """Group hits by line, in file order."""
    hits.sort()
    current: _Line | None = None
    for end, pattern in hits:
        last = end - 1 if end and text[end - 1 : end] != b"\n" else max(end - 1, 0)
        if current is not None and last < current.end:
            if pattern not in current.patterns:
                current.patterns.append(pattern)
            continue
        if current is not None:
            current.patterns.sort()
            yield current
        start = text.rfind(b"\n", 0, last) + 1
        stop = text.find(b"\n", last)
        current = _Line(start, len(text) if stop < 0 else stop, end, [pattern])
    if current is not None:
        current.patterns.sort()
        yield current


def _origin(base: Origin, said: Prefixed, number: int) -> Origin:
    return Origin(
        file=base.file,
        line=number,
        rank=said.rank if said.rank is not None else base.rank,
        local_rank=said.local_rank if said.local_rank is not None else base.local_rank,
        node=said.node or base.node,
        pid=said.pid,
    )


def _borrowed_time(stream: Stream, text: bytes, start: int) -> float | None:
    """Return the time of the nearest line above that states one, else the last one of the stream.

    The lines above may be of an earlier block. None is looked at again that an earlier hit has looked at.
    """
    floor = max(stream.looked_back_to, start - LOOKBACK_BYTES_MAX)
    window = text[max(floor, 0) : start]
    if floor < 0 and stream.above:
        window = stream.above[floor:] + window
    lines = window.split(b"\n")[:-1]
    if start - floor == LOOKBACK_BYTES_MAX and floor > stream.looked_back_to:
        lines = lines[1:]  # the first one may have lost its beginning
    for line in reversed(lines[-LOOKBACK_LINES_MAX:]):
        if line and (found := parse_time(decode(line, LOOKBACK_LINE_BYTES), stream.times)) is not None:
            return found
    return stream.times.last_s
