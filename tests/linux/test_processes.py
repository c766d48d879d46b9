"""What the kernel says of processes, and what it does not say."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobwatchdog.linux import proctable
from jobwatchdog.linux.pidfd import Ended, how_it_ended
from jobwatchdog.model import JobId
from jobwatchdog.sources.exits import Exit, Exits
from jobwatchdog.sources.libraries import Libraries, loaded
from jobwatchdog.sources.procs import RankProcess, rank_processes, seen


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a rank."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "RANK": "3"})
    yield process
    process.kill()
    process.wait()


def test_none_means_that_there_is_no_such_process(sleeper: subprocess.Popen[bytes]) -> None:
    """And a zombie is not alive."""
    found = proctable.read(sleeper.pid)
    assert found is not None
    assert (found.pid, found.ppid, found.alive) == (sleeper.pid, os.getpid(), True)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    zombie = proctable.read(sleeper.pid)
    assert zombie is not None
    assert not zombie.alive
    sleeper.wait()
    assert proctable.read(sleeper.pid) is None


def test_what_cannot_be_read_is_an_error_and_not_a_death(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptors left."""
    (rank,) = rank_processes([sleeper.pid])

    def starved(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", starved)
    with pytest.raises(OSError, match="Too many open files"):
        proctable.read(sleeper.pid)
    with pytest.raises(OSError, match="Too many open files"):
        proctable.table()
    assert seen(rank, JobId("job"), 1.0) is None


def test_how_it_ended_is_told_before_and_where_the_kernel_can_after_its_parent_asked() -> None:
    """Of a process that is not our child."""
    for script, want in (
        ("import sys; sys.exit(7)", Ended(code=7)),
        ("import os; os.kill(os.getpid(), 9)", Ended(signal=9)),
    ):
        process = subprocess.Popen([sys.executable, "-c", f"input(); {script}"], stdin=subprocess.PIPE)
        fd = os.pidfd_open(process.pid)
        start = proctable.read(process.pid)
        assert start is not None
        assert how_it_ended(fd, process.pid, start.ticks) is None
        process.communicate(b"\n")  # asks for its status
        release = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
        assert how_it_ended(fd, process.pid, start.ticks) == (want if release >= (6, 15) else None)
        os.close(fd)


async def test_the_first_to_end_is_told_first() -> None:
    """In their order, with how they ended, though nobody samples."""
    processes = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "RANK": str(n)})
        for n in range(3)
    ]
    await asyncio.sleep(0.3)
    ranks = rank_processes([process.pid for process in processes])
    assert [one.rank for one in ranks] == [0, 1, 2]
    ends: list[Exit] = []
    exits = Exits(ends.append)
    exits.watch(ranks)
    exits.watch(ranks)
    for n in (2, 0, 1):
        processes[n].send_signal(signal.SIGTERM if n else signal.SIGKILL)
        os.waitid(os.P_PID, processes[n].pid, os.WEXITED | os.WNOWAIT)
        async with asyncio.timeout(5):
            while not ends or ends[-1].process.rank != n:
                await asyncio.sleep(0.001)
    assert [(end.process.rank, end.how) for end in ends] == [
        (2, Ended(signal=15)), (0, Ended(signal=9)), (1, Ended(signal=15)),
    ]  # fmt: skip
    assert [end.t_s for end in ends] == sorted(end.t_s for end in ends)
    exits.close()
    for process in processes:
        process.wait()


async def test_a_pid_that_is_another_processs_by_now_is_not_told(sleeper: subprocess.Popen[bytes]) -> None:
    """Closing forgets everything."""
    exits = Exits(lambda end: pytest.fail(str(end)))
    exits.watch([RankProcess(0, sleeper.pid, 1, None, None), RankProcess(1, 2**22 - 1, 1, None, None)])
    exits.close()
    sleeper.kill()
    await asyncio.sleep(0.1)


def test_the_release_of_pytorch_is_read_from_the_memory_map() -> None:
    """Nothing in the job is asked; a process without it says nothing."""
    assert loaded(os.getpid()).nccl is None
    assert loaded(2**22 - 1) == Libraries()
    torch = importlib.import_module("torch") if os.environ.get("CI") else pytest.importorskip("torch")
    process = subprocess.Popen(
        [sys.executable, "-c", "import torch; print('ready', flush=True); input()"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    want = tuple(map(int, str(torch.__version__).partition("+")[0].split(".")))
    assert loaded(process.pid).torch == want
    process.communicate(b"\n")


def test_folders_of_nccl_tell_its_release(tmp_path: Path) -> None:
    """The wheel's folder, or the library's own name."""
    from jobwatchdog.sources import libraries

    site = tmp_path / "site-packages"
    (site / "nvidia" / "nccl" / "lib").mkdir(parents=True)
    (site / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    assert libraries._nccl(site / "nvidia/nccl/lib", "2") == (2, 27, 5)
    assert libraries._nccl(Path("/usr/lib"), "2.21.5") == (2, 21, 5)
    assert libraries._nccl(Path("/usr/lib"), "2") is None
