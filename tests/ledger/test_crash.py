"""Killing the watchdog at any moment gives neither two acts nor none."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobwatchdog.ledger import Ledger, Reader
from jobwatchdog.model import Outcome

CHILD = Path(__file__).with_name("crash_child.py")
KEYS = ("restart:job:0", "restart:job:1")


def child(*args: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def acts(work: Path, key: str) -> int:
    file = work / key
    return len(file.read_text().splitlines()) if file.exists() else 0


async def test_death_before_any_statement_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """For every statement and commit of a whole life: SIGKILL there, recover, and each key was acted on once."""
    process = child("point", tmp_path, 1, 60)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    rows = [list(map(int, line.split())) for line in out.splitlines()]
    died = [number for number, status, _ in rows if status == signal.SIGKILL]
    assert len(died) > 20, "the points must cover the life"
    assert died == list(range(1, len(died) + 1)), "every statement is a crash point, up to a life that ends well"
    assert all(recovered == 0 for _, _, recovered in rows)
    for number, *_ in rows:
        work = tmp_path / str(number)
        assert [acts(work, key) for key in KEYS] == [1, 1], f"died before statement {number}"
        async with await Reader.open(str(work / "ledger.db")) as reader:
            assert await reader.pending() == []
            done = [p.action.key for p in await reader.history() if p.outcome is Outcome.DONE]
            assert sorted(done) == sorted(KEYS)


async def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    """Twelve lives, each ended by SIGKILL from outside; a final one that only recovers."""
    chance = random.Random(20)
    for _ in range(12):
        process = child("work", tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.02, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    ledger = await Ledger.open(str(tmp_path / "ledger.db"))
    await ledger.take_epoch("test")
    unknown = {past.action.key for past in await ledger.pending()}
    assert len(unknown) <= 1, "one at a time is in flight"
    history = await ledger.history()
    done = [past.action.key for past in history if past.outcome is Outcome.DONE]
    assert len(done) == len(set(done))
    assert len(done) > 10
    for past in history:
        count = acts(tmp_path, past.action.key)
        if past.outcome is Outcome.DONE:
            assert count == 1
        assert count <= 1
    assert {file.name for file in tmp_path.glob("k*")} <= {past.action.key for past in history}, "no act without intent"
    await ledger.close()


async def test_one_of_two_processes_wins_each_key(tmp_path: Path) -> None:
    """Both at once, a hundred keys: every key is granted exactly once."""
    ledger = await Ledger.open(str(tmp_path / "ledger.db"))
    await ledger.take_epoch("test")
    await ledger.close()
    racers = [child("race", tmp_path, name, 100) for name in ("-a", "-b")]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    won = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert sorted(won[0] + won[1]) == sorted(f"k{i}" for i in range(100))
