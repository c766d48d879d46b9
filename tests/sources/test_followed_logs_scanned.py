"""Followed files through the scanner: line numbers and whole lines, whatever happens to the file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from jobwatchdog.model import JobId, LogMatch, Signal
from jobwatchdog.shell import node_agent
from jobwatchdog.shell.node_agent import NodeAgent
from jobwatchdog.signals.catalogue import Catalogue
from jobwatchdog.signals.scanner import Scanner

LIMIT_S = 20.0
CATALOGUE = r"""
version: 1
signatures:
  - id: mark
    role: context
    pattern: 'mark (?P<step>\d+) end'
    summary: A line of these tests.
    matches: ["mark 1 end"]
    rejects: ["mark 1"]
"""


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    """One pattern."""
    return Scanner(Catalogue.parse([("marks.yaml", CATALOGUE)]))


class Marks:
    """An agent with nothing but logs, and what it sent: the line and the number of each mark."""

    def __init__(self, scanner: Scanner) -> None:
        self.found: list[tuple[str, int | None, int]] = []
        self.agent = NodeAgent(JobId("job"), scanner, self._send)

    async def _send(self, signals: Sequence[Signal]) -> None:
        for one in signals:
            if isinstance(one, LogMatch):
                name = Path(one.origin.file or "").name
                self.found.append((name, one.origin.line, int(one.fields["step"])))

    async def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < deadline, self.found
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def watching(scanner: Scanner) -> AsyncIterator[Marks]:
    """Run the agent."""
    marks = Marks(scanner)
    task = asyncio.create_task(marks.agent.run())
    try:
        yield marks
    finally:
        marks.agent.stop()
        await asyncio.wait_for(task, LIMIT_S)


@pytest.mark.parametrize("how", ["rename", "truncate"])
async def test_after_a_rotation_lines_are_counted_anew_and_no_half_line_is_glued(
    tmp_path: Path, scanner: Scanner, how: str
) -> None:
    """`mark 2` without its end must not take the end from the next file's first line."""
    log = tmp_path / "a.log"
    log.write_bytes(b"x\nx\nmark 1 end\nmark 2")
    async with watching(scanner) as marks:
        marks.agent.follow(str(log))
        await marks.until(lambda: len(marks.found) == 1)
        if how == "rename":
            log.rename(tmp_path / "a.log.1")
            log.write_bytes(b" end\nmark 3 end\n")
        else:
            os.truncate(log, 0)
            with log.open("ab") as out:
                out.write(b" end\nmark 3 end\n")
        await marks.until(lambda: len(marks.found) == 2)
    assert marks.found == [("a.log", 3, 1), ("a.log", 2, 3)]


async def test_a_half_line_that_the_rotation_ends_is_a_line(tmp_path: Path, scanner: Scanner) -> None:
    """The last words of a process whose log was moved away."""
    log = tmp_path / "a.log"
    log.write_bytes(b"mark 1 end")
    async with watching(scanner) as marks:
        marks.agent.follow(str(log))
        await marks.until(lambda: bool(marks.agent._streams))
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"mark 2 end\n")
        await marks.until(lambda: len(marks.found) == 2)
    assert marks.found == [("a.log", 1, 1), ("a.log", 1, 2)]


async def test_any_bytes_leave_the_marks_and_their_numbers_as_they_are(tmp_path: Path, scanner: Scanner) -> None:
    """Invalid UTF-8, colours, progress bars, nulls, a line of three megabytes, a half line at the end."""
    log = tmp_path / "a.log"
    rest = [
        b"\xff\xfe broken \x80\n", b"\x1b[31mmark 1 end\x1b[0m\n", b" 1%|#\r 2%|##\rmark 2 end\r100%|####\n",
        b"\0" * 5000 + b"\n", b"y" * (3 << 20) + b"\n", b"mark 3 end\n", b"mark 4 e",
    ]  # fmt: skip
    async with watching(scanner) as marks:
        marks.agent.follow(str(log))
        with log.open("ab", buffering=0) as out:
            for piece in rest:
                out.write(piece)
            await marks.until(lambda: len(marks.found) == 3)
            out.write(b"nd\n")
            await marks.until(lambda: len(marks.found) == 4)
    assert marks.found == [("a.log", 2, 1), ("a.log", 3, 2), ("a.log", 6, 3), ("a.log", 7, 4)]


async def test_a_log_of_two_attempts_is_told_once_however_slowly_it_is_scanned(
    tmp_path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt goes on where scanning ended, not where reading did."""
    monkeypatch.setattr(node_agent, "REST_S_MAX", 0.0)
    log = tmp_path / "a.log"
    n_lines = 60_000
    with log.open("wb") as out:
        for n in range(n_lines):
            out.write(b"mark %d end" % n + b"." * 60 + b"\n" if n % 1000 == 0 else b"." * 80 + b"\n")
    async with watching(scanner) as marks:
        marks.agent.attempt_began(1, [log])
        for attempt in range(2, 6):
            seen = len(marks.found)
            await marks.until(lambda seen=seen: len(marks.found) > seen or seen == n_lines // 1000)  # type: ignore[misc]
            await marks.agent.attempt_ended()
            marks.agent.attempt_began(attempt, [log])
        await marks.until(lambda: len(marks.found) >= n_lines // 1000)
    assert [n for _, _, n in marks.found] == list(range(0, n_lines, 1000))
