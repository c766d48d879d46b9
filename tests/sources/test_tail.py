"""Every line that is written to a followed file arrives, once and in order, whatever happens to the file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobwatchdog.model import SourceLost
from jobwatchdog.signals.scanner import StreamInfo
from jobwatchdog.sources.followed import Followed
from jobwatchdog.sources.look import Look
from jobwatchdog.sources.tail import Blocks, Position, Tailer

LIMIT_S = 20.0


class Reader:
    """Follows, and keeps what came."""

    def __init__(self, hung_s: float = 10.0) -> None:
        self.bytes: dict[str, bytes] = defaultdict(bytes)
        self.begins: dict[str, int] = defaultdict(int)
        self.lost: list[SourceLost] = []
        self.order: list[str] = []
        self.tail = Tailer(self._blocks, self._lost, hung_s=hung_s)

    async def _blocks(self, blocks: Blocks) -> None:
        for block in blocks:
            self.bytes[block.info.file] += block.data
            self.begins[block.info.file] += block.begins
            self.order.append(block.info.file)

    async def _lost(self, lost: SourceLost) -> None:
        self.lost.append(lost)

    async def until(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < deadline, (dict(self.bytes), self.lost)
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def following(*paths: Path | str, hung_s: float = 10.0, from_start: bool = True) -> AsyncIterator[Reader]:
    """Run a tailer on the paths."""
    reader = Reader(hung_s)
    for path in paths:
        reader.tail.add(str(path), from_start=from_start)
    task = asyncio.create_task(reader.tail.run())
    try:
        yield reader
    finally:
        reader.tail.stop()
        await asyncio.wait_for(task, LIMIT_S)


async def test_a_file_that_appears_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Also where only new lines were wanted: all of its lines are new."""
    log = tmp_path / "later.log"
    async with following(log, from_start=False) as reader:
        await asyncio.sleep(0.1)
        log.write_bytes(b"first\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"first\n")


async def test_from_the_end_means_new_lines_only(tmp_path: Path) -> None:
    """What stood there before is not told again."""
    log = tmp_path / "a.log"
    log.write_bytes(b"old\n")
    async with following(log, from_start=False) as reader:
        await reader.until(lambda: reader.tail.positions())
        with log.open("ab") as out:
            out.write(b"new\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"new\n")


async def test_a_half_line_arrives_as_it_is_written(tmp_path: Path) -> None:
    """Block-buffered output and progress bars: the scanner puts the pieces together."""
    log = tmp_path / "a.log"
    async with following(log) as reader:
        with log.open("ab", buffering=0) as out:
            for part in (b"ste", b"p 1\r", b"step 2", b"\n"):
                out.write(part)
                before = len(reader.bytes[str(log)])
                await reader.until(lambda n=before: len(reader.bytes[str(log)]) > n)  # type: ignore[misc]
        assert reader.bytes[str(log)] == b"step 1\rstep 2\n"


async def test_rotation_by_renaming_loses_nothing_and_is_told(tmp_path: Path) -> None:
    """The old file's rest first; what its writer still appends is a stream of its own."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    writer = log.open("ab", buffering=0)
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)] == b"one\n")
        writer.write(b"two\n")
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"three\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\nthree\n")
        assert reader.begins[str(log)] == 1
        writer.write(b"late\n")
        await reader.until(lambda: reader.bytes[f"{log} (rotated)"] == b"late\n")
    writer.close()


async def test_truncation_in_place_is_told_and_read_anew(tmp_path: Path) -> None:
    """copytruncate, or a second start that opens its log anew."""
    log = tmp_path / "a.log"
    log.write_bytes(b"a long first line\n")
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        os.truncate(log, 0)
        await asyncio.sleep(0.3)
        with log.open("ab") as out:
            out.write(b"new\n")
        await reader.until(lambda: reader.bytes[str(log)].endswith(b"line\nnew\n"))
        assert reader.begins[str(log)] == 1


async def test_a_deleted_file_is_read_through_its_handle_and_may_come_again(tmp_path: Path) -> None:
    """It vanishes while it is followed: nothing dies."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    writer = log.open("ab", buffering=0)
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        log.unlink()
        writer.write(b"two\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\n")
        log.write_bytes(b"three\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\nthree\n")
        assert reader.lost == []
    writer.close()


async def test_patterns_find_files_that_appear(tmp_path: Path) -> None:
    """A new attempt's folder."""
    reader = Reader()
    reader.tail.add_glob(f"{tmp_path}/attempt-*/*.log")
    task = asyncio.create_task(reader.tail.run())
    await asyncio.sleep(0.05)
    (tmp_path / "attempt-1").mkdir()
    log = tmp_path / "attempt-1" / "out.log"
    log.write_bytes(b"x\n")
    await reader.until(lambda: reader.bytes[str(log)] == b"x\n")
    reader.tail.stop()
    await asyncio.wait_for(task, LIMIT_S)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
async def test_what_is_no_file_is_told_once_and_never_blocks(tmp_path: Path, kind: str) -> None:
    """Opening a pipe would wait for its writer, or take what another reader waits for."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    log = tmp_path / "a.log"
    log.write_bytes(b"read\n")
    async with following(path, log) as reader:
        await reader.until(lambda: reader.bytes[str(log)] and reader.lost)
        await asyncio.sleep(0.1)
        assert [(one.source, one.reason) for one in reader.lost] == [(str(path), f"not a file but a {kind}")]
        assert reader.bytes.get(str(path)) is None


async def test_a_flood_in_one_file_does_not_starve_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its share of a look, and a look that was full is gone on with."""
    monkeypatch.setattr("jobwatchdog.sources.look.LOOK_BYTES_MAX", 3 << 20)
    names = [tmp_path / f"{n}.log" for n in range(8)]
    for path in names:
        path.write_bytes(b"x" * (4 << 20))
    async with following(*names) as reader:
        await reader.until(lambda: len(set(reader.order)) == len(names))
        assert len(reader.order) <= 2 * len(names), "every file was served before one was served a third time"
        await reader.until(lambda: all(len(reader.bytes[str(path)]) == 4 << 20 for path in names))


async def test_a_file_system_that_hangs_costs_only_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, the others are read on, and when it answers again nothing was lost."""
    hung, good = tmp_path / "hung.log", tmp_path / "good.log"
    hung.write_bytes(b"one\n")
    good.write_bytes(b"one\n")
    answers = threading.Event()
    read = os.pread

    def slow(handle: int, size: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{handle}").readlink() == hung:
            answers.wait()
        return read(handle, size, offset)

    monkeypatch.setattr(os, "pread", slow)
    async with following(hung, good, hung_s=0.2) as reader:
        await reader.until(lambda: reader.bytes[str(good)] == b"one\n")
        for n in range(3):
            with good.open("ab") as out:
                out.write(b"more\n")
            await reader.until(lambda n=n: reader.bytes[str(good)].count(b"more\n") == n + 1)  # type: ignore[misc]
        assert [one.source for one in reader.lost] == [str(hung)]
        assert "no answer" in reader.lost[0].reason
        answers.set()
        await reader.until(lambda: reader.bytes[str(hung)] == b"one\n")
        with hung.open("ab") as out:
            out.write(b"two\n")
        await reader.until(lambda: reader.bytes[str(hung)] == b"one\ntwo\n")


async def test_a_file_that_hangs_for_ever_does_not_keep_us_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in state D must not hold up the watchdog's own end."""
    log = tmp_path / "hung.log"
    log.write_bytes(b"x\n")
    never = threading.Event()
    monkeypatch.setattr(os, "pread", lambda *_: never.wait() and b"")
    reader = Reader(0.1)
    reader.tail.add(str(log))
    task = asyncio.create_task(reader.tail.run())
    await reader.until(lambda: reader.lost)
    reader.tail.stop()
    await asyncio.wait_for(task, 5.0)
    never.set()


async def test_following_goes_on_where_it_was_left(tmp_path: Path) -> None:
    """The same file: from there; another under its name: from its beginning."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        left = reader.tail.positions()[str(log)]
        reader.tail.remove(str(log))
        with log.open("ab") as out:
            out.write(b"two\n")
        reader.tail.add(str(log), at=left)
        await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\n")
        reader.tail.remove(str(log))
        reader.tail.add(str(log), at=Position(left.device, left.inode + 1, 4))
        await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\none\ntwo\n")


async def test_nothing_is_delivered_of_a_file_that_was_removed(tmp_path: Path) -> None:
    """And its descriptor is given back."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        reader.tail.remove(str(log))
        with log.open("ab") as out:
            out.write(b"two\n")
        await reader.until(lambda: not _open_files(log))
        assert reader.bytes[str(log)] == b"one\n"


def _open_files(path: Path) -> list[str]:
    found = []
    for name in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if name.readlink() == path:
                found.append(name.name)
    return found


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """After the end, of a rotated file too."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"two\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\n")
    deadline = time.monotonic() + LIMIT_S
    while _open_files(log) or _open_files(tmp_path / "a.log.1"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("successor", ["folder", "nothing"])
async def test_the_rest_of_a_rotated_file_is_not_lost_with_an_unreadable_successor(
    tmp_path: Path, successor: str
) -> None:
    """And that another file began is told when one can be read at last."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    writer = log.open("ab", buffering=0)
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        writer.write(b"two\n")
        log.rename(tmp_path / "a.log.1")
        if successor == "folder":
            log.mkdir()
            await reader.until(lambda: reader.lost)
            writer.write(b"late\n")
            log.rmdir()
        else:
            await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\n")
        log.write_bytes(b"three\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\nthree\n")
        assert reader.begins[str(log)] == 1
        if successor == "folder":
            await reader.until(lambda: reader.bytes[f"{log} (rotated)"] == b"late\n")
    writer.close()


async def test_a_line_that_is_half_written_at_the_rotation_stays_one_line(tmp_path: Path) -> None:
    """Buffered writers flush within lines: the successor waits a moment for the rest."""
    log = tmp_path / "a.log"
    log.touch()
    writer = log.open("ab", buffering=0)
    async with following(log) as reader:
        writer.write(b"half")
        await reader.until(lambda: reader.bytes[str(log)] == b"half")
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"new\n")
        writer.write(b" a line\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"half a line\nnew\n")
    writer.close()


async def test_a_half_line_that_is_never_ended_holds_nothing_up(tmp_path: Path) -> None:
    """Its writer died."""
    log = tmp_path / "a.log"
    log.write_bytes(b"half")
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)] == b"half")
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"new\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"halfnew\n")
        assert reader.begins[str(log)] == 1, "so that the scanner does not take it for a line"


async def test_the_last_look_reads_what_a_rotation_left_behind(tmp_path: Path) -> None:
    """Old rest, half a line, successor: all before the end."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        with log.open("ab") as out:
            out.write(b"half")
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"new\n")
    assert reader.bytes[str(log)] == b"one\nhalfnew\n"


async def test_a_pattern_reads_no_file_twice(tmp_path: Path) -> None:
    """Rotated files, links to files and circular links to folders match too."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    (tmp_path / "latest.log").symlink_to(log)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.log").symlink_to("self.log")
    reader = Reader()
    reader.tail.add(str(log))
    reader.tail.add_glob(f"{tmp_path}/**/*.log*")
    task = asyncio.create_task(reader.tail.run())
    await reader.until(lambda: reader.bytes[str(log)] == b"one\n")
    log.rename(tmp_path / "a.log.1")
    log.write_bytes(b"two\n")
    await reader.until(lambda: reader.bytes[str(log)] == b"one\ntwo\n")
    reader.tail.stop()
    await asyncio.wait_for(task, LIMIT_S)
    assert dict(reader.bytes) == {str(log): b"one\ntwo\n"}


async def test_a_pattern_goes_on_with_a_rotated_file_where_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long after the rotation its writer still has not noticed."""
    monkeypatch.setattr("jobwatchdog.sources.followed.OLD_QUIET_S", 0.0)
    monkeypatch.setattr("jobwatchdog.sources.tail.GLOB_S", 0.05)
    log, old = tmp_path / "a.log", tmp_path / "a.log.1"
    log.write_bytes(b"one\n")
    reader = Reader()
    reader.tail.add_glob(f"{tmp_path}/*.log*")
    task = asyncio.create_task(reader.tail.run())
    await reader.until(lambda: reader.bytes[str(log)] == b"one\n")
    log.rename(old)
    log.write_bytes(b"two\n")
    await reader.until(lambda: str(old) in reader.tail.paths())
    with old.open("ab") as out:
        out.write(b"late\n")
    await reader.until(lambda: reader.bytes[str(old)])
    reader.tail.stop()
    await asyncio.wait_for(task, LIMIT_S)
    assert dict(reader.bytes) == {str(log): b"one\ntwo\n", str(old): b"late\n"}


async def test_a_pattern_does_not_bring_back_what_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be told a second time."""
    monkeypatch.setattr("jobwatchdog.sources.tail.GLOB_S", 0.0)
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    log.write_bytes(b"one\n")
    reader = Reader()
    reader.tail.add_glob(f"{tmp_path}/*.log")
    task = asyncio.create_task(reader.tail.run())
    await reader.until(lambda: reader.bytes[str(log)])
    reader.tail.remove(str(log))
    other.write_bytes(b"x\n")
    await reader.until(lambda: reader.bytes[str(other)])
    reader.tail.stop()
    await asyncio.wait_for(task, LIMIT_S)
    assert reader.bytes[str(log)] == b"one\n"
    assert reader.tail.paths() == [str(other)]


class Hanging:
    """Makes reads of some files wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.closed_in_use = False
        self._in_use: set[int] = set()
        read, close = os.pread, os.close

        def slow(handle: int, size: int, offset: int) -> bytes:
            if Path(f"/proc/self/fd/{handle}").readlink() in paths:
                self._in_use.add(handle)
                self.asked.set()
                self.answers.wait()
                self._in_use.discard(handle)
            return read(handle, size, offset)

        def checked(handle: int) -> None:
            self.closed_in_use |= handle in self._in_use
            close(handle)

        monkeypatch.setattr(os, "pread", slow)
        monkeypatch.setattr(os, "close", checked)


async def test_many_files_that_hang_do_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread is left behind soon; only the telling waits."""
    monkeypatch.setattr("jobwatchdog.sources.tail.LEAVE_S", 0.02)
    hung = [tmp_path / f"hung{n}.log" for n in range(12)]
    good = tmp_path / "good.log"
    for path in (*hung, good):
        path.write_bytes(b"one\n")
    hanging = Hanging(monkeypatch, *hung)
    async with following(*hung, good, hung_s=1e6) as reader:
        await reader.until(lambda: reader.bytes[str(good)] == b"one\n")
        assert reader.lost == []
        hanging.answers.set()
        await reader.until(lambda: all(reader.bytes[str(path)] == b"one\n" for path in hung))


async def test_a_file_that_is_removed_while_it_hangs_is_closed_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, its number might belong to another file, which would be read in its place."""
    monkeypatch.setattr("jobwatchdog.sources.tail.LEAVE_S", 0.02)
    hung, good = tmp_path / "hung.log", tmp_path / "good.log"
    hung.write_bytes(b"one\n")
    hanging = Hanging(monkeypatch, hung)
    async with following(hung, good) as reader:
        await asyncio.to_thread(hanging.asked.wait, LIMIT_S)
        good.write_bytes(b"one\n")
        await reader.until(lambda: reader.bytes[str(good)])
        reader.tail.remove(str(hung))
        good.write_bytes(b"one\ntwo\n")
        await reader.until(lambda: reader.bytes[str(good)].endswith(b"two\n"))
        assert _open_files(hung)
        hanging.answers.set()
        await reader.until(lambda: not _open_files(hung))
        assert not hanging.closed_in_use
        assert reader.bytes.get(str(hung)) is None


def test_a_look_that_was_left_finishes_what_is_in_hand_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may have begun with the next file."""
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_bytes(b"one\n")
    second.write_bytes(b"two\n")
    hanging = Hanging(monkeypatch, first)
    look = Look([Followed(str(path), StreamInfo(str(path)), True) for path in (first, second)], 0.0)
    thread = threading.Thread(target=look)
    thread.start()
    assert hanging.asked.wait(LIMIT_S)
    assert look.leave(1e6) is None, "not yet"
    assert look.leave(0.0) == str(first)
    hanging.answers.set()
    thread.join(LIMIT_S)
    assert [block.data for block in look.found] == [b"one\n"]
    for block in look.found:
        block.source.close()


async def test_a_file_without_permission_is_told_once_and_read_when_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read all: so the refusal is made here."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    open_file, allowed, tries = os.open, threading.Event(), [0]

    def refuse(path: str, *args: int) -> int:
        if path == str(log) and not allowed.is_set():
            tries[0] += 1
            raise PermissionError(13, "Permission denied")
        return open_file(path, *args)

    monkeypatch.setattr(os, "open", refuse)
    async with following(log) as reader:
        await reader.until(lambda: tries[0] >= 2)
        assert [one.reason for one in reader.lost] == ["Permission denied"]
        allowed.set()
        await reader.until(lambda: reader.bytes[str(log)] == b"one\n")


async def test_a_read_error_and_another_file_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle of NFS: the new file is read from its beginning, and told to be another."""
    log = tmp_path / "a.log"
    log.write_bytes(b"a long first line\n")
    read, stale = os.pread, threading.Event()

    def pread(handle: int, size: int, offset: int) -> bytes:
        if stale.is_set() and Path(f"/proc/self/fd/{handle}").readlink() == tmp_path / "a.log.1":
            raise OSError(116, "Stale file handle")
        return read(handle, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    async with following(log) as reader:
        await reader.until(lambda: reader.bytes[str(log)])
        stale.set()
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"new\n")
        await reader.until(lambda: reader.bytes[str(log)] == b"a long first line\nnew\n")
        assert reader.begins[str(log)] == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.sampled_from([b"a", b"\xff", b"\r", b"\n", b"\x1b[1m"]), min_size=1)),
        st.tuples(st.sampled_from(["rotate", "late", "pause"]), st.just([])),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mix_of_writing_and_rotating_loses_and_doubles_no_byte(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[bytes]]]
) -> None:
    """Each file's bytes in order; the files in the order in which they had the name; late ones on their own."""
    folder = tmp_path_factory.mktemp("tail")
    log = folder / "a.log"

    async def play() -> None:
        async with following(log) as reader:
            written, late, rotations = b"", b"", 0
            log.touch()

            async def caught_up() -> None:
                await reader.until(lambda: (at := reader.tail.positions().get(str(log))) is not None
                                   and at.inode == log.stat().st_ino)  # fmt: skip

            for number, (what, pieces) in enumerate(steps):
                if what == "write":
                    data = b"%d " % number + b"".join(pieces)
                    with log.open("ab") as out:
                        out.write(data)
                    written += data
                elif what == "rotate":
                    await caught_up()
                    rotations += 1
                    log.rename(folder / f"a.log.{rotations}")
                    log.touch()
                elif what == "late" and rotations:
                    await caught_up()
                    with (folder / f"a.log.{rotations}").open("ab") as out:
                        out.write(b"late %d\n" % number)
                    late += b"late %d\n" % number
                else:
                    await asyncio.sleep(0.03)
            await reader.until(lambda: len(reader.bytes[str(log)]) >= len(written))
            await reader.until(lambda: len(reader.bytes[f"{log} (rotated)"]) >= len(late))
        assert reader.bytes[str(log)] == written
        assert reader.bytes[f"{log} (rotated)"] == late

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobwatchdog.sources.followed.HALF_LINE_S", 0.02)
        asyncio.run(play())
