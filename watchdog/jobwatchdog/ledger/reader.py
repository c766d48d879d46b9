"""Reading a ledger: for `status`, `incidents`, replay, and a supervisor that begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from sqlalchemy import Row, Select, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from jobwatchdog.ledger import schema
from jobwatchdog.ledger.database import READS, connect, parsed, sqlite_file
from jobwatchdog.ledger.errors import LedgerError, explained
from jobwatchdog.model import (
    Action,
    Decision,
    Event,
    Incident,
    Job,
    JobId,
    Kind,
    Outcome,
    PastAction,
    Receipt,
)
from jobwatchdog.model.codec import CodecError, loads

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the story: an event or a decision, by which supervisor, in which place."""

    seq: int
    epoch: int
    item: Event | Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job as the ledger last saw it."""

    job: Job
    seen_s: float


class Reader:
    """Reads one ledger; never writes, and makes no file."""

    def __init__(self, engine: AsyncEngine, where: str) -> None:
        self._engine = engine
        self._where = where

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open a ledger that exists."""
        target = parsed(url)
        file = sqlite_file(target)
        where = target.render_as_string(hide_password=True)
        if file is not None and not file.exists():
            raise LedgerError(f"there is no ledger at {file}: nothing was watched with this state directory yet")
        reader = cls(connect(target), where)
        try:
            await reader.epoch()
        except BaseException:
            await reader.close()
            raise
        return reader

    @property
    def where(self) -> str:
        """Its URL, without a password."""
        return self._where

    async def close(self) -> None:
        """Give the connections back."""
        await self._engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- questions ------------------------------------------------------------------------------

    async def epoch(self) -> int:
        """The newest epoch that a supervisor took; 0 = none yet."""
        rows = await self._rows(select(schema.fence.c.epoch, schema.fence.c.schema_version))
        if not rows:
            raise LedgerError(f"ledger {self._where}: the fence row is missing; the ledger was made by something else")
        version = int(rows[0].schema_version)
        if version > schema.SCHEMA_VERSION:
            raise LedgerError(
                f"ledger {self._where} has format {version}, this release knows {schema.SCHEMA_VERSION}: "
                "use the release that wrote it, or a newer one"
            )
        return int(rows[0].epoch)

    async def jobs(self) -> list[JobLine]:
        """All jobs, the one seen last in front."""
        table = schema.jobs
        rows = await self._rows(select(table).order_by(table.c.seen_s.desc(), table.c.id))
        return [JobLine(job=self._load(Job, row.body), seen_s=float(row.seen_s)) for row in rows]

    async def incidents(self, job: JobId | None = None, limit: int = 1000) -> list[Incident]:
        """The newest incidents, newest first."""
        table = schema.incidents
        query = select(table.c.body).order_by(table.c.opened_s.desc(), table.c.id).limit(limit)
        rows = await self._rows(query if job is None else query.where(table.c.job == job))
        return [self._load(Incident, row.body) for row in rows]

    async def pending(self, job: JobId | None = None) -> list[PastAction]:
        """Intents that nobody knows the end of, oldest first: to be resolved by looking."""
        past = await self._past(job)
        return [action for action in past if action.outcome in (None, Outcome.UNKNOWN)]

    async def history(self, job: JobId | None = None) -> list[PastAction]:
        """Every intent of a job (of all jobs), oldest first, with its receipt's outcome where there is one."""
        return await self._past(job)

    async def receipt_of(self, action: str) -> Receipt | None:
        """The receipt of one action."""
        rows = await self._rows(select(schema.receipts.c.body).where(schema.receipts.c.action == action))
        return self._load(Receipt, rows[0].body) if rows else None

    async def story(self, job: JobId | None = None, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Events and decisions in their order: fed to a new engine, the events give the same decisions."""
        table = schema.story
        query = select(table).where(table.c.seq > after).order_by(table.c.seq)
        if job is not None:
            query = query.where(or_(table.c.job == job, table.c.job == ""))
        rows = await self._rows(query if limit is None else query.limit(limit))
        return [Entry(seq=int(row.seq), epoch=int(row.epoch), item=self._item(row)) for row in rows]

    # ---- how ------------------------------------------------------------------------------------

    async def _past(self, job: JobId | None) -> list[PastAction]:
        intents, receipts = schema.intents, schema.receipts
        query = (
            select(intents, receipts.c.outcome, receipts.c.finished_s)
            .join(receipts, receipts.c.action == intents.c.action, isouter=True)
            .order_by(intents.c.ordered_s, intents.c.action)
        )
        rows = await self._rows(query if job is None else query.where(intents.c.job == job))
        return [self._past_action(row) for row in rows]

    def _past_action(self, row: Row[tuple[object, ...]]) -> PastAction:
        return PastAction(
            action=self._load(Action, row.body),
            policy=row.policy,
            rule=row.rule,
            rung=int(row.rung),
            kind=Kind(row.kind),
            ordered_s=float(row.ordered_s),
            outcome=None if row.outcome is None else Outcome(row.outcome),
            finished_s=None if row.finished_s is None else float(row.finished_s),
        )

    def _item(self, row: Row[tuple[object, ...]]) -> Event | Decision:
        cls: type[Event] | type[Decision] = Event if row.what == "event" else Decision
        return self._load(cls, row.body)

    def _load(self, cls: type[T], body: str) -> T:
        try:
            return loads(cls, body)
        except CodecError as error:
            raise LedgerError(f"ledger {self._where} holds a {cls.__name__} that cannot be read: {error}") from error

    async def _rows(self, query: Select[tuple[object, ...]]) -> Sequence[Row[tuple[object, ...]]]:
        async with self._reading() as connection:
            return (await connection.execute(query)).all()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        with explained(self._where):
            async with self._engine.connect() as connection:
                await connection.execution_options(**{READS: True})
                yield connection
