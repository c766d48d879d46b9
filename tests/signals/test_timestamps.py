"""Times as lines state them: every usual shape, with and without year and zone, and what only looks like a time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobwatchdog.signals.timestamps import TimeState, parse_time

NOON = datetime(2026, 11, 30, 12, 0, 1, tzinfo=UTC).timestamp()
HINT = datetime(2026, 12, 1, tzinfo=UTC).timestamp()

WITH_YEAR = [
    ("2026-11-30 12:00:01 x", 0.0),
    ("2026-11-30 12:00:01,123 INFO x", 0.123),
    ("[2026-11-30 12:00:01,123] [INFO] x", 0.123),
    ("2026-11-30 12:00:01.123456: I tensorflow/core", 0.123456),
    ("2026-11-30T12:00:01Z x", 0.0),
    ("2026-11-30T12:00:01.123456789Z stderr F x", 0.123456789),
    ("2026-11-30T12:00:01.123456+00:00 node-12 kernel: x", 0.123456),
    ("2026-11-30T13:00:01+01:00 x", 0.0),
    ("2026-11-30T13:00:01+0100 x", 0.0),
    ("2026-11-30 17:30:01 +0530 x", 0.0),
    ("2026-11-30T04:00:01-08:00 x", 0.0),
    ("2026-11-30 12:00:01 UTC x", 0.0),
    ("2026/11/30 12:00:01 x", 0.0),
    ("2026-11-30_12:00:01 x", 0.0),
    ("  time      : 2026-11-30_12:00:01", 0.0),
    ("[Mon Nov 30 12:00:01 2026] NVRM: Xid", 0.0),
    ("Mon Nov 30 12:00:01 UTC 2026", 0.0),
    ("[2026-11-30T12:00:01.123] error: x", 0.123),
    ("[2026-11-30 12:00:01]  iteration 12/ 500 | x", 0.0),
    ("  8%|8 | 4/50 [06:40<1:16:40,  1.00s/it]2026-11-30 12:00:01,123 - INFO x", 0.123),
    (':::MLLOG {"namespace": "", "time_ms": 1796040001123, "event_type": "POINT_IN_TIME"}', 0.123),
    ('{"__REALTIME_TIMESTAMP" : "1796040001123456", "MESSAGE" : "x"}', 0.123456),
    ("1796040001.123 x", 0.123),
    ("[1796040001.123456] [node-4571:58829:0] ib_verbs.h:84   UCX  ERROR x", 0.123456),
    ("1796040001123 x", 0.123),
]

WITHOUT_YEAR = [
    ("Nov 30 12:00:01 node-12 kernel: x", 0.0),
    ("E1130 12:00:01.123456 139873 torch/distributed/x.py:869] x", 0.123456),
    ("[rank0]:[E1130 12:00:01.123456789 ProcessGroupNCCL.cpp:629] x", 0.123456789),
    ("[W1130 12:00:01.5 socket.cpp:697] x", 0.5),
    ("Nov 30 12:00:01 725868 [CBA966C0] 0x01 -> x", 0.0),
    ("11/30 12:00:01 x", 0.0),
]

NONE_AT_ALL = [
    "",
    "RuntimeError: boom",
    "[155044.070707] NVRM: Xid",
    "[    0.000000] Linux version 5.15.0",
    "elapsed 12:00:01",
    "  8%|8 | 4/50 [06:40<1:16:40,  1.00s/it]",
    "2026-13-45 99:99:99 x",
    "version 2026.11.30",
    "10.0.0.1:12345 x",
    "12345678901234567890 x",
    "step 1796040001 of many",
    "Nov x 12:00:01",
]


@pytest.mark.parametrize(("line", "fraction"), WITH_YEAR, ids=[line[:40] for line, _ in WITH_YEAR])
def test_a_whole_stamp_needs_nothing_else(line: str, fraction: float) -> None:
    """No zone means UTC."""
    assert parse_time(line, TimeState()) == pytest.approx(NOON + fraction, abs=1e-6)


@pytest.mark.parametrize(("line", "fraction"), WITHOUT_YEAR, ids=[line[:40] for line, _ in WITHOUT_YEAR])
def test_a_year_is_inferred_from_the_files_age(line: str, fraction: float) -> None:
    """And never read from a clock."""
    assert parse_time(line, TimeState(hint_s=HINT)) == pytest.approx(NOON + fraction, abs=1e-6)


@pytest.mark.parametrize("line", [line for line, _ in WITHOUT_YEAR])
def test_without_year_and_hint_there_is_no_time(line: str) -> None:
    """A guess would order logs wrongly."""
    assert parse_time(line, TimeState()) is None


@pytest.mark.parametrize("line", NONE_AT_ALL)
def test_what_only_looks_like_a_time_is_none(line: str) -> None:
    """Uptimes, durations, versions, addresses."""
    assert parse_time(line, TimeState(hint_s=HINT)) is None


def test_a_date_behind_the_files_age_is_of_the_year_before() -> None:
    """A log of December that was last written in January."""
    january = datetime(2027, 1, 3, tzinfo=UTC).timestamp()
    assert parse_time("Dec 30 12:00:01 x", TimeState(hint_s=january)) == NOON + 30 * 86_400


def test_a_log_may_cross_new_year() -> None:
    """A line with a year sets it, the calendar goes on."""
    state = TimeState()
    before = parse_time("2026-12-31 23:59:59 x", state)
    after = parse_time("Jan  1 00:00:01 node-12 kernel: x", state)
    assert before is not None
    assert after == before + 2


def test_the_year_of_an_earlier_line_holds_for_later_ones() -> None:
    """Two loggers write into one file."""
    state = TimeState()
    parse_time("2026-11-30 12:00:00,000 INFO x", state)
    assert parse_time("[rank0]:[E1130 12:00:01.0 ProcessGroupNCCL.cpp:629] x", state) == NOON


def test_the_29th_of_february_exists_in_leap_years_only() -> None:
    """Elsewhere it is no date."""
    assert parse_time("2028-02-29 12:00:01 x", TimeState()) == datetime(2028, 2, 29, 12, 0, 1, tzinfo=UTC).timestamp()
    assert parse_time("2026-02-30 12:00:01 x", TimeState()) is None
