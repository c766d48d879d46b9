"""Bytes in any blocks give the same signals and line numbers, whatever the bytes are, in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobwatchdog.model import LogMatch, Signal, StepReport
from jobwatchdog.signals.scanner import LINE_BYTES_MAX, REPEATS_FULL, Scanner, StreamInfo

Make = Callable[[], Scanner]


def scan(scanner: Scanner, blocks: Sequence[bytes]) -> list[Signal]:
    stream = scanner.open(StreamInfo("train.log"))
    found = [signal for block in blocks for signal in scanner.feed(stream, block)]
    return found + scanner.finish(stream)


def matches(signals: Sequence[Signal]) -> list[tuple[str, int | None]]:
    return [(one.signature, one.origin.line) for one in signals if isinstance(one, LogMatch)]


RECORD = b'{"log":"[rank3]: CUDA out of memory\\n","stream":"stderr","time":"2026-11-30T12:00:01.1Z"}\n'
PIECES = (
    b"Traceback (most recent call last):\n",
    b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    b"2026-11-30 12:00:01,123 INFO x\n",
    b"[Mon Nov 30 12:00:01 2026] NVRM: Xid (PCI:0000:c5:00): 79, GPU has fallen off the bus.\r\n",
    b"\x1b[31;1mlonely\x1b[0m\n",
    b"lonely\rlonely\rlonely\n",
    b"\x1b]0;title\x07lonely\n",
    b"  8%|8 | 400/5000 [06:40<1:16:40,  1.00s/it, loss=1.23]\r",
    b"iter 100: loss 3.2011, time 312.10ms, mfu 38.57%\n",
    (
        b" iteration     1200/  500000 | consumed samples: 614400 | elapsed time per iteration (ms): 1843.2 | "
        b"global batch size:   512 | lm loss: 2.418733E+00 | number of nan iterations:   0 |\n"
    ),
    RECORD,
    b'{"message": "Traceback (most recent call last):\\nlonely\\nCUDA out of memory"}\n',
    (
        b"[rank0]:[E ProcessGroupNCCL.cpp:821] [Rank 0] a message that a terminal broke at its width of sixty-odd\n"
        b"letters, CUDA out of memory\n"
    ),
    b"\xff\xfe\x00\x80 CUDA out of memory \xc3\x28\n",
    b"\n",
    b"\r\n",
    b"\x1b",
    b"\\",
    b"n",
    b"lonely",
    b"\x00\x01\x02",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.lists(st.integers(0, 1500), max_size=8))
@example([b"lonely\rlonely\rlonely\n"], [7])
@example([b"\x1b[31;1mlonely\x1b[0m\n"], [3])
@example([b"lonely\r\n"], [7])
@example([b"1/5 [00:01<00:09,  1.00s/it, loss=1.23]\r", RECORD], [39])
def test_any_split_gives_the_same_signals(make_scanner: Make, pieces: list[bytes], cuts: list[int]) -> None:
    """The same lines, times, ranks and texts."""
    data = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    blocks = [data[a:b] for a, b in pairwise(edges)]
    assert scan(make_scanner(), blocks) == scan(make_scanner(), [data])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 17))
def test_any_bytes_are_read(make_scanner: Make, data: bytes, size: int) -> None:
    """And in blocks of any size alike."""
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    assert scan(make_scanner(), blocks) == scan(make_scanner(), [data])


def test_line_numbers_are_those_of_the_file(make_scanner: Make) -> None:
    """Carriage returns and written-out line breaks make no lines of the file."""
    data = b"a\nlonely\n\nlonely\rlonely\n{'m': 'x\\nlonely\\n'}\r\n\x1b[1mlonely\x1b[0m"
    assert matches(scan(make_scanner(), [data])) == [
        ("lonely", 2),
        ("lonely", 4),
        ("lonely", 4),
        ("lonely", 5),
        ("lonely", 6),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_progress_bar_is_read_step_by_step(make_scanner: Make, size: int) -> None:
    """It rewrites one line."""
    bar = b"".join(b"\r  %d%%|8 | %d/500 [06:40<1:16:40,  1.00s/it, loss=1.23]" % (n, n) for n in range(1, 6)) + b"\n"
    steps = [
        s.step
        for s in scan(make_scanner(), [bar[at : at + size] for at in range(0, len(bar), size)])
        if isinstance(s, StepReport)
    ]
    assert steps == [1, 2, 3, 4, 5]


def test_colours_and_titles_do_not_hide_a_line(make_scanner: Make) -> None:
    """Escapes of terminals, also within the words."""
    for line in (
        b"\x1b[31mlonely\x1b[0m",
        b"\x1b[0;1;31mlo\x1b[0mnely",
        b"\x1b]0;train\x07lonely",
        b"\x1b[2K\x1b[1Glonely",
    ):
        assert matches(scan(make_scanner(), [line + b"\n"])) == [("lonely", 1)], line


def test_what_is_no_utf8_does_not_hide_a_line(make_scanner: Make) -> None:
    """Nor break the text of the evidence."""
    (found,) = scan(make_scanner(), [b"\xff\xfe CUDA out of memory \xc3\x28\n"])
    assert isinstance(found, LogMatch)
    assert found.text == "\ufffd\ufffd CUDA out of memory \ufffd("


def test_binary_junk_around_a_line(make_scanner: Make) -> None:
    """A crashed node leaves blocks of zeros in its logs."""
    data = bytes(range(256)) * 40 + b"\nlonely\n" + b"\x00" * 100_000 + b"\nlonely\n"
    assert [name for name, _ in matches(scan(make_scanner(), [data]))] == ["lonely", "lonely"]


def test_a_line_of_64_megabytes_costs_no_more_memory_than_its_pieces(make_scanner: Make) -> None:
    """A hit in the middle of it is found, and so is the line after it."""
    scanner = make_scanner()
    stream = scanner.open(StreamInfo("train.log"))
    filler = b"x" * (1 << 20)
    found: list[Signal] = []
    tracemalloc.start()
    for number in range(64):
        found += scanner.feed(stream, b" CUDA out of memory. " + filler[21:] if number == 40 else filler)
    found += scanner.feed(stream, b"\nlonely\n") + scanner.finish(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert matches(found) == [("oom", 1), ("lonely", 2)]
    assert peak < 12 * LINE_BYTES_MAX
    assert len(stream.tail) <= LINE_BYTES_MAX
    assert scanner.stats.cut_lines == 1
    assert all(len(one.text) <= 2000 for one in found if isinstance(one, LogMatch))


@pytest.mark.parametrize("size", [1000, 65_536, 1 << 20, 3 << 20])
def test_a_long_line_is_cut_at_the_same_places_in_any_blocks(make_scanner: Make, size: int) -> None:
    """Cut into pieces, it still gives the same signals."""
    line = (
        b"y" * (LINE_BYTES_MAX - 9)
        + b"CUDA out of memory "
        + b"z" * (2 * LINE_BYTES_MAX)
        + b" Xid (PCI:0000:c5:00): 79\nlonely\n"
    )
    whole = scan(make_scanner(), [line])
    assert scan(make_scanner(), [line[at : at + size] for at in range(0, len(line), size)]) == whole
    assert matches(whole)[-1] == ("lonely", 2)


def test_equal_lines_are_thinned_out(make_scanner: Make) -> None:
    """A line that comes ten thousand times is told a hundred times, and then at powers of two."""
    scanner = make_scanner()
    found = scan(scanner, [b"lonely\n" * 10_000])
    assert len(found) == REPEATS_FULL + len([n for n in range(REPEATS_FULL + 1, 10_001) if n & (n - 1) == 0])
    assert scanner.stats.repeats == 10_000 - len(found)
    assert scanner.stats.lines == 10_000


def test_a_last_line_without_a_break_is_a_line(make_scanner: Make) -> None:
    """A killed writer leaves one; it is told once."""
    scanner = make_scanner()
    stream = scanner.open(StreamInfo("train.log"))
    assert scanner.feed(stream, b"a\nlonely") == []
    assert matches(scanner.finish(stream)) == [("lonely", 2)]
    assert scanner.finish(stream) == []


@pytest.mark.parametrize("attrs", ["", '"attrs":{"tag":"train"},'])
def test_dockers_json_records_are_opened(make_scanner: Make, attrs: str) -> None:
    """Line, stream and time of the container; colours and quotes are those of the line."""
    line = json.dumps('[rank3]: "x" \x1b[31mCUDA out of memory\x1b[0m <y>\n')
    record = f'{{"log":{line},"stream":"stderr",{attrs}"time":"2026-11-30T12:00:01.5Z"}}\n'
    (found,) = scan(make_scanner(), [record.encode()])
    assert isinstance(found, LogMatch)
    assert (found.origin.rank, found.origin.line, found.t_s) == (3, 1, 1_796_040_001.5)
    assert found.text == '2026-11-30T12:00:01.5Z stderr F [rank3]: "x" CUDA out of memory <y>'


def test_a_broken_record_is_read_as_it_is(make_scanner: Make) -> None:
    """Cut by a rotation, or with escapes that mean nothing."""
    for record in (
        b'{"log":"CUDA out of memory',
        b'{"log":"CUDA out of memory\\x","stream":"stderr","time":"2026-11-30T12:00:01.5Z"}',
    ):
        assert matches(scan(make_scanner(), [record + b"\n"])) == [("oom", 1)]


def test_words_of_unless_make_it_another_line(make_scanner: Make) -> None:
    """The pattern is found, and so are the words that take its meaning away."""
    assert matches(scan(make_scanner(), [b"CUDA out of memory, trying batch size 32\nCUDA out of memory\n"])) == [
        ("oom", 2)
    ]


def test_a_line_without_a_time_has_that_of_the_line_above(make_scanner: Make) -> None:
    """Also when a block ends between them."""
    data = b"2026-11-30 12:00:01,500 INFO x\nsomething\nlonely\n"
    for blocks in ([data], [data[:31], data[31:]]):
        (found,) = scan(make_scanner(), blocks)
        assert found.t_s == 1_796_040_001.5
