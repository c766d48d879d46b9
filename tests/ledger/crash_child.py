"""Runs in a process of its own: does a list of jobs through a ledger, and dies by SIGKILL at statement N.

The "world" is a folder: acting on key K appends one line to the file K. Whoever finds an intent without
receipt looks there, as an actuator's `resolve` does.

    crash_child.py point WORK FIRST LAST     for N in FIRST..LAST: fork, run, die at statement N; fork, recover
    crash_child.py work WORK                 work until killed from outside (again and again: recovers first)
    crash_child.py race WORK NAME COUNT      intend the same COUNT keys as somebody else; print what was granted
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from sqlalchemy import event

from jobwatchdog.ledger import Ledger
from jobwatchdog.model import Action, ActionId, IncidentId, JobId, Kind, Outcome, PlanId, Receipt, Verb

KEYS = ("restart:job:0", "restart:job:1")


def action(key: str, suffix: str = "") -> Action:
    return Action(
        id=ActionId(f"act-{key}{suffix}"), key=key, verb=Verb.RESTART, job=JobId("job"), attempt=0,
        incident=IncidentId("inc"), plan=PlanId("plan"),
    )  # fmt: skip


def act(world: Path, one: Action) -> None:
    """The act itself: not idempotent on purpose, a second call is seen in the file."""
    with (world / one.key).open("a") as file:
        file.write("done\n")


def receipt(one: Action, outcome: Outcome = Outcome.DONE) -> Receipt:
    return Receipt(action=one.id, outcome=outcome)


async def recover(ledger: Ledger, world: Path) -> None:
    """Resolve by looking. What did not happen is known not to have happened: it may be tried again."""
    for past in await ledger.pending():
        happened = (world / past.action.key).exists()
        await ledger.receipt(receipt(past.action, Outcome.DONE if happened else Outcome.FAILED))


async def do(ledger: Ledger, world: Path, key: str) -> None:
    tries = sum(past.action.key == key for past in await ledger.history())
    one = action(key, f"-{tries}")
    if await ledger.intend(one, kind=Kind.RANK_CRASH, now_s=1.0):
        act(world, one)
        await ledger.receipt(receipt(one))


async def life(work: Path, keys: tuple[str, ...], die_at: int | None = None) -> None:
    ledger = await Ledger.open(str(work / "ledger.db"))
    if die_at is not None:
        kill_at_statement(ledger, die_at)
    await ledger.take_epoch("child")
    await recover(ledger, work)
    for key in keys:
        await do(ledger, work, key)
    await ledger.close()


def kill_at_statement(ledger: Ledger, number: int) -> None:
    """Statements and commits count; death comes before the N-th, so after the one before it."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = ledger._engine.sync_engine
    event.listen(engine, "before_cursor_execute", step)
    event.listen(engine, "commit", step)


def forked(work: Path, die_at: int | None) -> int:
    pid = os.fork()
    if pid == 0:
        asyncio.run(life(work, KEYS, die_at))
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main() -> None:
    mode, work = sys.argv[1], Path(sys.argv[2])
    if mode == "point":
        for number in range(int(sys.argv[3]), int(sys.argv[4])):
            here = work / str(number)
            here.mkdir()
            died = forked(here, number)
            recovered = forked(here, None)
            print(number, died, recovered, flush=True)
    elif mode == "work":
        print("ready", flush=True)
        number = len(list(work.glob("k*")))
        while True:
            asyncio.run(life(work, tuple(f"k{i}" for i in range(max(0, number - 2), number + 40))))
            number += 40
    else:
        name, count = sys.argv[3], int(sys.argv[4])
        print(*asyncio.run(race(work, name, count)))


async def race(work: Path, name: str, count: int) -> list[str]:
    ledger = await Ledger.open(str(work / "ledger.db"))
    ledger._epoch = 1  # both believe to be the one supervisor: the worst case
    print("ready", flush=True)
    while not (work / "go").exists():
        time.sleep(0.001)
    won = [f"k{i}" for i in range(count) if await ledger.intend(action(f"k{i}", name))]
    await ledger.close()
    return won


if __name__ == "__main__":
    main()
