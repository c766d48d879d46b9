"""The ledger: intents once, receipts once, one writer, a story to replay, and errors that say what to do."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.schema import CreateTable

from jobwatchdog.ledger import Ledger, LedgerError, Reader, StaleEpoch, default_url, schema
from jobwatchdog.model import (
    NOBODY,
    Action,
    ActionFinished,
    ActionId,
    ActionOrdered,
    CauseClass,
    Decision,
    Event,
    Incident,
    IncidentChanged,
    IncidentId,
    IncidentState,
    Job,
    JobId,
    JobRegistered,
    Kind,
    Outcome,
    PlanId,
    Receipt,
    RestartHelps,
    SignalsObserved,
    StepReport,
    Tick,
    Verb,
)

JOB = JobId("job")


def action(key: str = "restart:job:0", id: str = "a1") -> Action:
    return Action(
        id=ActionId(id), key=key, verb=Verb.RESTART, job=JOB, attempt=0, incident=IncidentId("i"), plan=PlanId("p")
    )


def incident(state: IncidentState = IncidentState.OPEN) -> Incident:
    return Incident(
        id=IncidentId("i"), job=JOB, attempt=0, kind=Kind.RANK_CRASH, cause_class=CauseClass.UNKNOWN,
        restart_helps=RestartHelps.MAYBE, confidence=0.9, suspects=NOBODY, state=state, opened_s=3.0,
    )  # fmt: skip


def receipt(outcome: Outcome, id: str = "a1") -> Receipt:
    return Receipt(action=ActionId(id), outcome=outcome, finished_s=9.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/ledger.db"


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(url)
    await opened.take_epoch("test")
    yield opened
    await opened.close()


async def test_a_key_is_granted_once(ledger: Ledger) -> None:
    """A second request for the same restart is a no-op, whatever its action is called."""
    assert await ledger.intend(action())
    assert not await ledger.intend(action())
    assert not await ledger.intend(action(id="a2"))
    assert [past.action.id for past in await ledger.pending()] == ["a1"]


async def test_a_done_key_is_never_granted_again(ledger: Ledger) -> None:
    """Nor one that nobody knows the end of."""
    await ledger.intend(action())
    await ledger.receipt(receipt(Outcome.UNKNOWN))
    assert not await ledger.intend(action(id="a2"))
    await ledger.receipt(receipt(Outcome.DONE))
    assert not await ledger.intend(action(id="a2"))
    assert await ledger.pending() == []


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.SKIPPED])
async def test_a_key_whose_act_did_not_happen_may_be_tried_again(ledger: Ledger, outcome: Outcome) -> None:
    """Known not to have happened: the next rung, or a later fault, may need the same restart."""
    await ledger.intend(action())
    await ledger.receipt(receipt(outcome))
    assert await ledger.intend(action(id="a2"))
    assert not await ledger.intend(action(id="a3"))


async def test_the_first_definite_receipt_counts(ledger: Ledger) -> None:
    """A late, contradicting receipt changes nothing."""
    await ledger.intend(action())
    assert await ledger.receipt(receipt(Outcome.UNKNOWN))
    assert [past.outcome for past in await ledger.pending()] == [Outcome.UNKNOWN]
    assert await ledger.receipt(receipt(Outcome.DONE))
    assert not await ledger.receipt(receipt(Outcome.FAILED))
    assert [past.outcome for past in await ledger.history(JOB)] == [Outcome.DONE]


async def test_a_receipt_without_an_intent_is_not_kept(ledger: Ledger) -> None:
    """Who was refused the key may still report; the record stays that of the one who had it."""
    assert await ledger.intend(action())
    assert not await ledger.intend(action(id="a2"))
    assert not await ledger.receipt(receipt(Outcome.SKIPPED, "a2"))
    assert [past.action.id for past in await ledger.pending()] == ["a1"]


async def test_history_remembers_what_budgets_need(ledger: Ledger) -> None:
    """Policy, rule, rung and kind come back after a restart of the watchdog."""
    await ledger.intend(action(), policy="p", rule="r", rung=2, kind=Kind.LOSS_NAN, now_s=5.0)
    await ledger.receipt(receipt(Outcome.DONE))
    (past,) = await ledger.history(JOB)
    assert (past.policy, past.rule, past.rung, past.kind) == ("p", "r", 2, Kind.LOSS_NAN)
    assert (past.ordered_s, past.finished_s, past.action) == (5.0, 9.0, action())
    assert await ledger.history(JobId("other")) == []


async def test_a_replaced_supervisor_can_write_nothing(url: str, ledger: Ledger) -> None:
    """Every kind of write is refused under an old epoch, and nothing of it is kept."""
    async with await Ledger.open(url) as newer:
        assert await newer.take_epoch("newer") == ledger.held_epoch + 1
        for write in (
            ledger.intend(action()),
            ledger.receipt(receipt(Outcome.DONE)),
            ledger.record([Tick(now_s=1.0)]),
            ledger.prune(1e9),
        ):
            with pytest.raises(StaleEpoch, match="it was replaced"):
                await write
        assert await newer.history() == []
        assert await newer.story() == []
        assert await newer.intend(action())


async def test_nothing_is_written_before_an_epoch_is_taken(url: str) -> None:
    """A reader of the code cannot forget the fence."""
    async with await Ledger.open(url) as fresh:
        with pytest.raises(LedgerError, match="take_epoch"):
            await fresh.intend(action())


async def test_the_story_comes_back_in_order(ledger: Ledger) -> None:
    """Events and decisions, equal to what was recorded; another job's are left out, everybody's are not."""
    items: list[Event | Decision] = [
        JobRegistered(now_s=1.0, job=Job(id=JOB, launcher="local")),
        SignalsObserved(now_s=2.0, signals=(StepReport(framework="x", step=1, job=JOB),)),
        IncidentChanged(now_s=3.0, incident=incident(), why="opened"),
        ActionOrdered(now_s=3.0, action=action()),
        ActionFinished(now_s=4.0, receipt=receipt(Outcome.DONE)),
        Tick(now_s=5.0),
    ]
    await ledger.record(items[:3])
    for item in items[3:]:
        if isinstance(item, Event):
            await ledger.record_event(item)
        else:
            await ledger.record_decision(item)
    await ledger.record_event(JobRegistered(now_s=1.0, job=Job(id=JobId("other"), launcher="local")))
    story = await ledger.story(JOB)
    assert [entry.item for entry in story] == items
    assert [entry.seq for entry in story] == sorted({entry.seq for entry in story})
    assert await ledger.prune(3.0) == 3
    assert [entry.item for entry in await ledger.story(JOB)] == items[2:]


async def test_status_reads_jobs_and_incidents(url: str, ledger: Ledger) -> None:
    """The newest value of each, from another process's point of view."""
    await ledger.record([JobRegistered(now_s=1.0, job=Job(id=JOB, launcher="local"))])
    await ledger.record([JobRegistered(now_s=2.0, job=Job(id=JOB, launcher="local", attempt=1))])
    await ledger.record([IncidentChanged(now_s=3.0, incident=incident(), why="opened")])
    await ledger.record([IncidentChanged(now_s=4.0, incident=incident(IncidentState.RESOLVED), why="steps")])
    async with await Reader.open(url) as reader:
        (line,) = await reader.jobs()
        assert (line.job.attempt, line.seen_s) == (1, 2.0)
        (found,) = await reader.incidents(JOB)
        assert found.state is IncidentState.RESOLVED
        assert await reader.epoch() == 1


async def test_a_commit_waits_for_the_disk(url: str, ledger: Ledger) -> None:
    """Write-ahead log with full synchronisation: an intent survives a power cut."""
    async with ledger._engine.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar_one() == "wal"
        assert (await connection.exec_driver_sql("PRAGMA synchronous")).scalar_one() == 2


async def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    """No traceback of a driver: which file, what is wrong, what to do."""
    file = tmp_path / "ledger.db"
    file.write_bytes(b"this is no database at all, but long enough to be read as one" * 100)
    with pytest.raises(LedgerError, match=r"ledger\.db.*not a database.*move the file"):
        await Ledger.open(str(file))


async def test_a_file_damaged_inside_is_named_with_what_to_do(url: str) -> None:
    """The header is good, the pages are not."""
    async with await Ledger.open(url) as ledger:
        await ledger.take_epoch("test")
        await ledger.record([Tick(now_s=float(i)) for i in range(500)])
    file = Path(url.removeprefix("sqlite:///"))
    data = bytearray(file.read_bytes())
    data[4096:] = b"\x5a" * (len(data) - 4096)
    file.write_bytes(bytes(data))
    with pytest.raises(LedgerError, match=r"ledger\.db.*move the file"):
        async with await Ledger.open(url) as ledger:
            await ledger.story()


async def test_many_tasks_share_one_ledger(ledger: Ledger) -> None:
    """Forty at once, ten keys: ten are granted, and no task sees a lock."""
    wishes = [ledger.intend(action(f"k{i % 10}", f"a{i}")) for i in range(40)]
    granted = await asyncio.gather(*wishes)
    assert sum(granted) == 10
    assert len(await ledger.pending()) == 10


async def test_a_locked_file_is_named_with_what_to_do(
    url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the write lock: we wait, then say so."""
    monkeypatch.setattr("jobwatchdog.ledger.database.BUSY_TIMEOUT_S", 0.05)
    async with await Ledger.open(url) as second:
        holder = sqlite3.connect(url.removeprefix("sqlite:///"))
        holder.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(LedgerError, match=r"locked.*second watchdog"):
                await second.take_epoch("second")
        finally:
            holder.rollback()
            holder.close()


async def test_a_full_disk_is_named_with_what_to_do(ledger: Ledger) -> None:
    """SQLite's own page limit stands for the disk's end: the write is refused, what was there stays readable."""
    assert await ledger.intend(action())
    async with ledger._engine.connect() as connection:
        pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar_one()
        await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    big = Job(id=JOB, launcher="local", target="x" * 100_000)
    with pytest.raises(LedgerError, match=r"full.*Free space"):
        await ledger.record([JobRegistered(now_s=1.0, job=big)])
    assert len(await ledger.pending()) == 1
    assert await ledger.jobs() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_folder_without_permission_is_named_with_what_to_do(tmp_path: Path) -> None:
    """A read-only state folder: say where to look, and how to choose another."""
    tmp_path.chmod(0o500)
    with pytest.raises(LedgerError, match="JOBWATCHDOG_STATE"):
        await Ledger.open(f"sqlite:///{tmp_path}/state/ledger.db")


async def test_a_path_in_the_way_is_named_with_what_to_do(tmp_path: Path) -> None:
    """The state folder is a file."""
    (tmp_path / "state").touch()
    with pytest.raises(LedgerError, match=r"state/ledger\.db: .*"):
        await Ledger.open(f"sqlite:///{tmp_path}/state/ledger.db")


async def test_reading_makes_no_file(tmp_path: Path) -> None:
    """`status` on a machine where nothing was watched says so, and leaves nothing behind."""
    with pytest.raises(LedgerError, match="nothing was watched"):
        await Reader.open(str(tmp_path / "ledger.db"))
    assert list(tmp_path.iterdir()) == []


async def test_a_ledger_of_a_newer_release_is_refused(url: str, ledger: Ledger) -> None:
    """It is not half understood."""
    async with ledger._engine.begin() as connection:
        await connection.execute(schema.fence.update().values(schema_version=99))
    with pytest.raises(LedgerError, match="format 99, this release knows 1"):
        await Ledger.open(url)


async def test_a_url_that_is_none_is_refused() -> None:
    """With two that would do."""
    with pytest.raises(LedgerError, match=r"no database URL.*postgresql"):
        await Ledger.open("://")


def test_the_default_lies_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`JOBWATCHDOG_STATE` moves it."""
    monkeypatch.setenv("JOBWATCHDOG_STATE", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/ledger.db"


def test_the_tables_can_be_made_in_postgresql() -> None:
    """Nothing in the schema is SQLite's own."""
    dialect = PGDialect_asyncpg()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped
    sql = [str(CreateTable(table).compile(dialect=dialect)) for table in schema.metadata.sorted_tables]
    assert len(sql) == 6
    assert any("BIGSERIAL" in one for one in sql)
