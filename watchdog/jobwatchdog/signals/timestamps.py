"""Times as log lines state them. Pure: the year that a line leaves out is inferred, never read from a clock."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MONTHS: Final = {m: i for i, m in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}  # noqa: SIM905
_DAY_S: Final = 86_400.0
_SEARCH_CHARS: Final = 400  # a progress bar may stand before the stamp

_FULL: Final = re.compile(
    r"(?<![\d.])(?P<Y>(?:19|20)\d\d)[-/](?P<m>\d\d?)[-/](?P<d>\d\d?)[T _](?P<H>\d\d):(?P<M>\d\d)(?::(?P<S>\d\d)(?P<f>[.,:]\d{1,9})?)?"
    r" ?(?P<z>Z|UTC|GMT|[+-]\d\d:?\d\d(?!\d|:))?"
)
_CTIME: Final = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<b>[A-Z][a-z]{2}) {1,2}(?P<d>\d\d?) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>\.\d+)?"
    r"(?: [A-Z]{3,4})? (?P<Y>(?:19|20)\d\d)"
)
_GLOG: Final = re.compile(r"(?<![A-Za-z])[IWEF](?P<m>\d\d?)(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>\.\d+)")
_SYSLOG: Final = re.compile(
    r"(?<![A-Za-z])(?P<b>[A-Z][a-z]{2}) {1,2}(?P<d>\d\d?) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>\.\d+)?"
)
_SHORT: Final = re.compile(r"^\[?(?P<m>\d\d)/(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>\.\d+)?")
_MLLOG: Final = re.compile(r'"time_ms": ?(\d{13})')
_JOURNAL: Final = re.compile(r'"__REALTIME_TIMESTAMP" ?: ?"(\d{16})"')
_EPOCH: Final = re.compile(r"^\[?(1[0-9]{9})(?:(\d{3})|(\.\d+))?[\]: ,]")


# Every shape has one of these; most lines without a time have none, and cost one search.
_MAYBE: Final = re.compile(r"[ T_]\d\d:\d\d|\"time_ms\"|\"__REALTIME_TIMESTAMP\"|^\[?1[0-9]{9}")


@dataclass(slots=True)
class TimeState:
    """What a stream has shown of its dates. `hint_s` is a time not before its last line (a file's mtime)."""

    hint_s: float | None = None
    year: int | None = None  # of the last line with a year
    last_s: float | None = None


@lru_cache(maxsize=256)  # lines of one minute follow each other
def _epoch(year: int, month: int, day: int, hour: int, minute: int) -> float | None:
    if not (1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1] and hour < 25 and minute < 60):
        return None
    return float(calendar.timegm((year, month, day, hour, minute, 0)))


def _zone_s(text: str | None) -> float:
    if not text or text[0] not in "+-":
        return 0.0
    digits = text[1:].replace(":", "")
    offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return float(offset if text[0] == "+" else -offset)


def _of(match: re.Match[str], year: int) -> float | None:
    part = match.groupdict()
    month = _MONTHS.get(part["b"].lower()) if "b" in part else int(part["m"])
    if month is None:
        return None
    minute = _epoch(year, month, int(part["d"]), int(part["H"]), int(part["M"]))
    second = int(part.get("S") or 0)
    if minute is None or second > 60:
        return None
    whole = minute + second
    fraction = part.get("f")
    return whole + (float("0." + fraction[1:]) if fraction else 0.0) - _zone_s(part.get("z"))


def _without_year(match: re.Match[str], state: TimeState) -> float | None:
    year = state.year
    if year is None and state.hint_s is not None:
        year = _year_of(state.hint_s)
    if year is None:
        return None
    found = _of(match, year)
    if found is not None and state.hint_s is not None and found > state.hint_s + _DAY_S:
        return _of(match, year - 1)
    if found is not None and state.last_s is not None and state.last_s - found > 300 * _DAY_S:
        return _of(match, year + 1)  # the log crosses New Year
    return found


def _year_of(time_s: float) -> int:
    # Proleptic Gregorian year of a Unix time, by calendar alone.
    year = 1970 + int(time_s // 31_556_952)
    while calendar.timegm((year + 1, 1, 1, 0, 0, 0)) <= time_s:
        year += 1
    while calendar.timegm((year, 1, 1, 0, 0, 0)) > time_s:
        year -= 1
    return year


def parse_time(line: str, state: TimeState) -> float | None:
    """Return the Unix time that a line states, None where it states none. No zone means UTC.

    Kernel uptime (`[ 1234.5]`) is no wall time and gives None.
    """
    head = line[:_SEARCH_CHARS]
    if not _MAYBE.search(head):
        return None
    found = _with_year(head, state)
    if found is None:
        for shape in (_GLOG, _SYSLOG, _SHORT):
            if (match := shape.search(head)) and (found := _without_year(match, state)) is not None:
                break
    if found is None and (match := _EPOCH.match(head)):
        found = int(match[1]) + (int(match[2]) / 1e3 if match[2] else float(match[3] or 0.0))
    if found is not None:
        state.last_s = found
    return found


def _with_year(head: str, state: TimeState) -> float | None:
    if match := _MLLOG.search(head):
        return int(match[1]) / 1e3
    if match := _JOURNAL.search(head):
        return int(match[1]) / 1e6
    for shape in (_FULL, _CTIME):
        if match := shape.search(head):
            year = int(match["Y"])
            found = _of(match, year)
            if found is not None:
                state.year = year
                return found
    return None
