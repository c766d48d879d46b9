"""The durable record: intents before acts, receipts after, and the story of how it came to that.

Every write checks, in its own transaction, that no newer supervisor has taken an epoch: one that was
frozen and replaced can write nothing on waking, and so can begin nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from sqlalchemy import Table, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from jobwatchdog.ledger import schema
from jobwatchdog.ledger.database import connect, parsed, sqlite_file
from jobwatchdog.ledger.errors import LedgerError, StaleEpoch, explained
from jobwatchdog.ledger.reader import Reader
from jobwatchdog.model import (
    Action,
    ActionFinished,
    ApprovalGiven,
    Decision,
    Event,
    HistoryLoaded,
    Incident,
    IncidentChanged,
    JobRegistered,
    Kind,
    LogEnded,
    Outcome,
    Receipt,
    SignalsObserved,
)
from jobwatchdog.model.codec import dumps

_DID_NOT_HAPPEN = frozenset({Outcome.FAILED.value, Outcome.SKIPPED.value})


class Ledger(Reader):
    """A ledger that is also written. Take an epoch before the first write."""

    def __init__(self, engine: AsyncEngine, where: str) -> None:
        super().__init__(engine, where)
        self._epoch = 0

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open a ledger; folder, file and tables are made where they are missing."""
        target = parsed(url)
        file = sqlite_file(target)
        where = target.render_as_string(hide_password=True)
        if file is not None:
            with explained(where):
                file.parent.mkdir(parents=True, exist_ok=True)
        ledger = cls(connect(target), where)
        try:
            await ledger._make_tables()
            await ledger.epoch()
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def _make_tables(self) -> None:
        """Two that start at once may both try: who comes second finds them made."""
        with explained(self._where):
            try:
                await self._make_tables_once()
            except (IntegrityError, OperationalError, ProgrammingError):
                await self._make_tables_once()

    async def _make_tables_once(self) -> None:
        first = {"id": 1, "schema_version": schema.SCHEMA_VERSION, "epoch": 0, "owner": "", "taken_s": 0.0}
        async with self._engine.begin() as connection:
            await connection.run_sync(schema.metadata.create_all)
            if (await connection.execute(select(schema.fence.c.id))).first() is None:
                await connection.execute(insert(schema.fence).values(first))

    # ---- epochs ---------------------------------------------------------------------------------

    @property
    def held_epoch(self) -> int:
        """The epoch that this ledger writes under; 0 = none was taken."""
        return self._epoch

    async def take_epoch(self, owner: str) -> int:
        """Become the one writer: higher than every epoch before, which are refused from now on."""
        fence = schema.fence
        with explained(self._where):
            async with self._engine.begin() as connection:
                values = {"epoch": fence.c.epoch + 1, "owner": owner[:200], "taken_s": time.time()}
                await connection.execute(update(fence).values(values))
                row = (await connection.execute(select(fence.c.epoch))).one()
        self._epoch = int(row.epoch)
        return self._epoch

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, refused where a newer epoch was taken; the lock holds until the commit."""
        if self._epoch == 0:
            raise LedgerError("nothing may be written before take_epoch()")
        fence = schema.fence
        with explained(self._where):
            async with self._engine.begin() as connection:
                query = select(fence.c.epoch, fence.c.owner).with_for_update(read=True)
                row = (await connection.execute(query)).one()
                if row.epoch != self._epoch:
                    raise StaleEpoch(self._epoch, int(row.epoch), row.owner)
                yield connection

    # ---- acts -----------------------------------------------------------------------------------

    async def intend(
        self,
        action: Action,
        *,
        policy: str = "",
        rule: str = "",
        rung: int = 1,
        kind: Kind = Kind.UNKNOWN_FAILURE,
        now_s: float | None = None,
    ) -> bool:
        """Make the intent durable; True = it is yours to carry out, and only yours.

        False if the key was given before, unless its last receipt says FAILED or SKIPPED: then it is known
        not to have happened, and may be tried again.
        """
        row = {
            "action": action.id, "key": action.key, "job": action.job, "epoch": self._epoch, "policy": policy,
            "rule": rule, "rung": rung, "kind": kind.value, "body": dumps(action),
            "ordered_s": time.time() if now_s is None else now_s,
        }  # fmt: skip
        try:
            async with self._writing() as connection:
                number = await self._next_try(connection, action.key)
                if number is None:
                    return False
                await connection.execute(insert(schema.intents).values({**row, "try": number}))
        except LedgerError as error:
            if isinstance(error.__cause__, IntegrityError):
                return False  # another was quicker, or this very action was intended before
            raise
        return True

    async def _next_try(self, connection: AsyncConnection, key: str) -> int | None:
        intents, receipts = schema.intents, schema.receipts
        query = (
            select(intents.c["try"], receipts.c.outcome)
            .join(receipts, receipts.c.action == intents.c.action, isouter=True)
            .where(intents.c.key == key)
            .order_by(intents.c["try"].desc())
            .limit(1)
        )
        last = (await connection.execute(query)).first()
        if last is None:
            return 0
        number, outcome = last
        return int(number) + 1 if outcome in _DID_NOT_HAPPEN else None

    async def receipt(self, receipt: Receipt) -> bool:
        """Make a receipt durable. The first definite one counts; UNKNOWN may still become definite.

        False = not kept: there is a definite one already, or no intent (somebody else held the key).
        """
        row = {
            "action": receipt.action, "outcome": receipt.outcome.value, "epoch": self._epoch,
            "finished_s": receipt.finished_s, "body": dumps(receipt),
        }  # fmt: skip
        table = schema.receipts
        async with self._writing() as connection:
            query = select(table.c.outcome).where(table.c.action == receipt.action)
            known = (await connection.execute(query)).first()
            if known is None:
                intent = select(schema.intents.c.action).where(schema.intents.c.action == receipt.action)
                if (await connection.execute(intent)).first() is None:
                    return False
                await connection.execute(insert(table).values(row))
                return True
            if known.outcome != Outcome.UNKNOWN.value:
                return False
            await connection.execute(update(table).where(table.c.action == receipt.action).values(row))
            return True

    # ---- the story ------------------------------------------------------------------------------

    async def record_event(self, event: Event) -> None:
        """Append one event."""
        await self.record([event])

    async def record_decision(self, decision: Decision) -> None:
        """Append one decision."""
        await self.record([decision])

    async def record(self, items: Sequence[Event | Decision]) -> None:
        """Append events and decisions, all or none; jobs and incidents are kept up to date on the way."""
        if not items:
            return
        async with self._writing() as connection:
            await connection.execute(insert(schema.story), [self._story_row(item) for item in items])
            for item in items:
                await self._note(connection, item)

    def _story_row(self, item: Event | Decision) -> dict[str, object]:
        return {
            "epoch": self._epoch, "job": _job_of(item), "now_s": item.now_s, "tag": type(item).__name__,
            "what": "event" if isinstance(item, Event) else "decision", "body": dumps(item),
        }  # fmt: skip

    async def _note(self, connection: AsyncConnection, item: Event | Decision) -> None:
        if isinstance(item, JobRegistered):
            job = item.job
            row = {"id": job.id, "attempt": job.attempt, "seen_s": item.now_s, "body": dumps(job)}
            await _put(connection, schema.jobs, row)
        elif isinstance(item, IncidentChanged):
            await _put(connection, schema.incidents, _incident_row(item.incident))

    async def prune(self, before_s: float) -> int:
        """Forget the story before a time; intents, receipts, jobs and incidents stay. Returns how many lines went."""
        table = schema.story
        async with self._writing() as connection:
            old = select(func.count()).select_from(table).where(table.c.now_s < before_s)
            count = (await connection.execute(old)).scalar_one()
            await connection.execute(delete(table).where(table.c.now_s < before_s))
        return int(count)


async def _put(connection: AsyncConnection, table: Table, row: dict[str, object]) -> None:
    """Update or insert, in words that every database knows; the fence's lock keeps a second writer out."""
    done = await connection.execute(update(table).where(table.c.id == row["id"]).values(row))
    if done.rowcount == 0:
        await connection.execute(insert(table).values(row))


def _incident_row(incident: Incident) -> dict[str, object]:
    return {
        "id": incident.id, "job": incident.job, "kind": incident.kind.value, "state": incident.state.value,
        "opened_s": incident.opened_s, "body": dumps(incident),
    }  # fmt: skip


def _job_of(item: Event | Decision) -> str:
    """The one job that an event or decision concerns; "" for several or all."""
    match item:
        case JobRegistered():
            return item.job.id
        case HistoryLoaded() | LogEnded():
            return item.job
        case SignalsObserved():
            jobs = {signal.job for signal in item.signals}
            return jobs.pop() if len(jobs) == 1 else ""
        case IncidentChanged():
            return item.incident.job
        case ActionFinished() | ApprovalGiven():
            return ""
    plan = getattr(item, "plan", None)
    action = getattr(item, "action", None)
    return str(getattr(plan, "job", "") or getattr(action, "job", "") or getattr(item, "job", "") or "")
