"""The tables, in SQL that SQLite and PostgreSQL both speak."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION: Final = 1

metadata = MetaData()

_Serial = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only a column of type INTEGER

# One row. Whoever writes locks it for reading, whoever takes a new epoch locks it for writing.
fence = Table(
    "fence",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("schema_version", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", String(200), nullable=False),
    Column("taken_s", Double, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("seen_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("job", String(200), nullable=False, index=True),
    Column("kind", String(40), nullable=False),
    Column("state", String(20), nullable=False),
    Column("opened_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)

# Events and decisions in the one order in which they happened: what a replay needs.
story = Table(
    "story",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=True),
    Column("epoch", BigInteger, nullable=False),
    Column("job", String(200), nullable=False),  # "" = concerns every job
    Column("now_s", Double, nullable=False),
    Column("what", String(10), nullable=False),  # event or decision
    Column("tag", String(40), nullable=False),  # its class, for a person who reads with SQL
    Column("body", Text, nullable=False),
    Index("story_by_job", "job", "seq"),
)

# What is about to be done. `try` counts from 0: a key is given again only after a receipt says that it did not happen.
intents = Table(
    "intents",
    metadata,
    Column("action", String(250), primary_key=True),
    Column("key", String(400), nullable=False),
    Column("try", Integer, nullable=False),
    Column("job", String(200), nullable=False, index=True),
    Column("epoch", BigInteger, nullable=False),
    Column("ordered_s", Double, nullable=False),
    Column("policy", String(200), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("rung", Integer, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("key", "try", name="one_intent_a_key"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("action", String(250), ForeignKey("intents.action"), primary_key=True),
    Column("outcome", String(20), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("finished_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)
