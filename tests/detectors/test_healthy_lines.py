"""Lines of healthy runs that look alarming: none of them alone makes an incident."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobwatchdog.testing.cases import Case, CaseSpec, Expect, run_case
from jobwatchdog.testing.policy_tests import Kit

FILE = Path(__file__).parent / "healthy.txt"
LINES = [
    (number, line)
    for number, line in enumerate(FILE.read_text(encoding="utf-8").splitlines(), 1)
    if line and not line.startswith("## ")
]
CARRIERS = ("[rank3]: {}", "2026-11-30T12:00:01.123456789Z stderr F {}")


def incidents(line: str, number: int, kit: Kit) -> str:
    spec = CaseSpec(name=line, log=f"{line}\n", expect=Expect(silent=True))
    return run_case(Case(FILE.name, number, spec), kit)


def test_there_are_many() -> None:
    """And no line twice."""
    assert len(LINES) >= 80
    assert len({line for _, line in LINES}) == len(LINES)


@pytest.mark.parametrize(("number", "line"), LINES, ids=[f"line {number}" for number, _ in LINES])
def test_a_healthy_line_makes_no_incident(number: int, line: str, kit: Kit) -> None:
    """Alone, as the last words of a log: nothing after it says that the run went on."""
    assert not incidents(line, number, kit)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_healthy_lines_make_no_incident_behind_a_prefix(carrier: str, kit: Kit) -> None:
    """Nor all of them together."""
    log = "\n".join(carrier.format(line) for _, line in LINES)
    assert not incidents(log, 0, kit)
