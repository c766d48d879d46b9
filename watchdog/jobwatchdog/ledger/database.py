"""Opening a database, and what differs between dialects."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final, Protocol

from sqlalchemy import Connection, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from jobwatchdog.ledger.errors import LedgerError

BUSY_TIMEOUT_S: Final = 10.0
READS: Final = "jobwatchdog_reads"  # execution option: this transaction writes nothing

_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


def state_dir() -> Path:
    """Where state is kept: `$JOBWATCHDOG_STATE`, else the user's state folder."""
    named = os.environ.get("JOBWATCHDOG_STATE")
    return Path(named).expanduser() if named else Path.home() / ".local" / "state" / "jobwatchdog"


def default_url() -> str:
    """The ledger that is used when none is named."""
    return f"sqlite:///{state_dir() / 'ledger.db'}"


URL_FILE: Final = "ledger.url"  # in a job's folder, where its ledger is not the file beside it


def url_of(folder: Path) -> str:
    """The ledger of the job whose folder this is."""
    named = folder / URL_FILE
    return named.read_text().strip() if named.exists() else f"sqlite:///{folder / 'ledger.db'}"


def remember_url(folder: Path, url: str) -> None:
    """From now on the job's ledger is there; the URL may hold a password, so the file is its owner's alone."""
    named = folder / URL_FILE
    named.touch(mode=0o600)
    named.write_text(url + "\n")


def folders_with_ledger(jobs: Path) -> list[Path]:
    """The folders of jobs that were ever watched, by name."""
    found = {path.parent for pattern in ("ledger.db", URL_FILE) for path in jobs.glob(f"*/{pattern}")}
    return sorted(found)


def parsed(url: str) -> URL:
    """The URL with its asyncio driver; a plain path is an SQLite file."""
    text = url if "://" in url else f"sqlite:///{Path(url).expanduser().absolute()}"
    try:
        found = make_url(text)
    except ArgumentError as error:
        raise LedgerError(f"{url!r} is no database URL: write sqlite:////path/ledger.db or postgresql://…") from error
    return found.set(drivername=_DRIVERS.get(found.drivername, found.drivername))


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite URL."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database)


def connect(url: URL) -> AsyncEngine:
    """An engine; SQLite gets the settings that make a commit survive a power cut."""
    try:
        if url.get_backend_name() != "sqlite":
            return create_async_engine(url, pool_pre_ping=True)
        engine = create_async_engine(url)
    except ModuleNotFoundError as error:
        raise LedgerError(f"the database driver {error.name} is not installed: pip install {error.name}") from error
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


class _Dbapi(Protocol):
    isolation_level: str | None

    def cursor(self) -> sqlite3.Cursor: ...


def _prepare_sqlite(dbapi: _Dbapi, _record: object) -> None:
    """Our own BEGIN instead of the driver's, write-ahead log, and a commit that waits for the disk."""
    dbapi.isolation_level = None
    cursor = dbapi.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
    finally:
        cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock first: a read that becomes a write later would fail instead of wait."""
    reads = connection.get_execution_options().get(READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
