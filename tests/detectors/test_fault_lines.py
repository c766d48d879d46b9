"""Wordings of faults that people meet, each alone: the right kind, bare and behind a prefix."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobwatchdog.model import Kind
from jobwatchdog.testing.cases import Case, CaseSpec, Expect, Facts, run_case
from jobwatchdog.testing.policy_tests import Kit

FILE = Path(__file__).parent / "faults.txt"
LINES = [
    (number, Kind(kind), line)
    for number, text in enumerate(FILE.read_text(encoding="utf-8").splitlines(), 1)
    for kind, _, line in [text.partition(" | ")]
]
CARRIERS = (
    "{}",
    "[rank3]: {}",
    "(RayTrainWorker pid=123, ip=10.0.0.1) {}",
    "2026-11-30T12:00:01.123456789Z stderr F {}",
)


@pytest.mark.parametrize(
    ("number", "kind", "line"), LINES, ids=[f"line {number}: {kind.value}" for number, kind, _ in LINES]
)
def test_a_known_wording_is_the_fault_it_is(number: int, kind: Kind, line: str, kit: Kit) -> None:
    """Whoever carried the line."""
    for carrier in CARRIERS:
        log = carrier.format(line)
        spec = CaseSpec(name=log, log=f"{log}\n", expect=Expect(fires=Facts(kind=kind)))
        wrong = run_case(Case(FILE.name, number, spec), kit)
        assert not wrong, wrong


def test_many_kinds_are_among_them() -> None:
    """All that a text alone can tell."""
    assert len({kind for _, kind, _ in LINES}) >= 17
    assert len({line for _, _, line in LINES}) == len(LINES)
