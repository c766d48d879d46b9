"""Every policy that ships is good, covers what it says, and passes its own tests; the runner of these tests too."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobwatchdog import bundled
from jobwatchdog.detectors import registry
from jobwatchdog.incidents import CausalTable
from jobwatchdog.model import Kind, Mode
from jobwatchdog.policy.load import PolicyErrors, check_policy, load_policy
from jobwatchdog.signals.catalogue import Catalogue, parse_catalogue
from jobwatchdog.signals.scanner import Scanner, compile_database
from jobwatchdog.testing.policy_tests import Kit, run_policy_tests

POLICIES = sorted(
    path for path in (Path(__file__).parents[2] / "policies").glob("*/*.yaml") if not path.name.endswith(".test.yaml")
)


def texts(path: Path) -> tuple[str, str, str, str]:
    test = path.with_suffix(".test.yaml")
    return path.read_text(), path.name, test.read_text(), test.name


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_a_bundled_policy_has_no_problem(path: Path) -> None:
    """Except for the addresses of people, which only a site knows."""
    policy, problems = check_policy(path.read_text(), path.name)
    assert policy is not None
    assert [str(p) for p in problems if "spec.notify" not in p.message] == []


@pytest.fixture(scope="module")
def kit() -> Kit:
    """The real scanner and detectors, compiled once."""
    found = [one for name, text in bundled.signature_texts() for one in parse_catalogue(text, name)]
    catalogue, documents = Catalogue(found), bundled.detector_documents()
    database = compile_database(catalogue)
    return Kit(
        scanner=lambda: Scanner(catalogue, database=database),
        detectors_for=lambda job: registry.build(job, documents),
        causes=CausalTable.parse(bundled.causal_table_text()),
    )


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_a_bundled_policy_passes_its_tests(path: Path, kit: Kit) -> None:
    """The file beside it."""
    failed = [f"{r.file}:{r.line} {r.name}\n{r.message}" for r in run_policy_tests(*texts(path), kit) if not r.passed]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_every_rule_of_a_bundled_policy_is_tested(path: Path) -> None:
    """A rule without a test is a guess."""
    policy = load_policy(path.read_text(), path.name)
    tests = path.with_suffix(".test.yaml").read_text()
    names = [rule.name for rule in policy.spec.rules]
    untested = [name for name in names if f"rule: {name}" not in tests]
    assert untested == [] or len(names) == 1


def test_only_the_local_policy_acts_as_shipped() -> None:
    """All others watch until their owner says so."""
    acting = [path.stem for path in POLICIES if load_policy(path.read_text(), path.name).spec.mode is not Mode.OBSERVE]
    assert acting == ["enforce"]


def test_the_default_has_an_answer_for_every_kind() -> None:
    """At the least, a person is told."""
    (path,) = [path for path in POLICIES if path.stem == "default"]
    covered = {kind for rule in load_policy(path.read_text(), path.name).spec.rules for kind in rule.on}
    assert covered == set(Kind)


def test_names_of_bundled_policies_are_their_own() -> None:
    """Two of one name would share a breaker."""
    names = [load_policy(path.read_text(), path.name).name for path in POLICIES]
    assert len(set(names)) == len(names)


@pytest.fixture
def crash() -> tuple[str, str]:
    path = next(path for path in POLICIES if path.stem == "rank-crash")
    return path.read_text(), path.name


def one(event: str) -> str:
    return f"tests:\n  - test: it\n    events:\n      - {event}\n"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("{incident: {kind: rank_crash}, expect: {rung: 2}}", ["-rung: 2", "+rung: 1", "✓ guardrail restarts: 0 of 4"]),
        ("{incident: {kind: rank_crash}, expect: {nothing: true}}", ["-nothing: true", "+rule: rank-crash"]),
        ("{incident: {kind: xid}, expect: {rule: bug}}", ["✗ rule bug: xid is not among config_or_code_bug"]),
        ("{incident: {kind: rank_crash}, expect: {actions: [stop]}}", ["stop", "restart"]),
        ("{receipt: failed}", ["no plan was made before this"]),
        ("{log: x, expect: {nothing: true}}", ["log lines need the detectors"]),
    ],
)
def test_a_failing_test_shows_what_came_instead(crash: tuple[str, str], event: str, words: list[str]) -> None:
    """A diff, and every check with its values."""
    (result,) = run_policy_tests(*crash, one(event), "t.yaml")
    assert not result.passed
    assert result.line == 4
    for word in words:
        assert word in result.message


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("{incident: {kind: rank_crsh}, expect: {rung: 1}}", "did you mean `rank_crash`?"),
        ("{incident: {kind: rank_crash}, expct: {rung: 1}}", "did you mean `expect`?"),
        ("{incident: {kind: rank_crash}}", "say what to `expect` of it"),
        ("{incident: {kind: rank_crash}, expect: {rule: rank-crsh}}", "did you mean `rank-crash`?"),
        ("{at: 5, receipt: failed}", "a duration needs a unit"),
    ],
)
def test_a_mistake_in_a_test_file_has_its_place(crash: tuple[str, str], event: str, words: str) -> None:
    """As in a policy."""
    with pytest.raises(PolicyErrors, match=r"t\.yaml:4:\d+: ") as caught:
        run_policy_tests(*crash, one(event), "t.yaml")
    assert words in str(caught.value)


def test_lines_of_a_log_are_read_bit_by_bit(crash: tuple[str, str], kit: Kit) -> None:
    """What was written before is still known."""
    events = """tests:
  - test: it
    events:
      - {log: "step: 1 loss: 2.0"}
      - {at: 1s, log: "step: 2 loss: 2.0", expect: {nothing: true}}
      - at: 30s
        log: |
          Traceback (most recent call last):
            File "t.py", line 1, in <module>
          NameError: name 'x' is not defined
        expect: {rule: bug}
"""
    (result,) = run_policy_tests(*crash, events, "t.yaml", kit)
    assert result.passed, result.message
