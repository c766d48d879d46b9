"""The policy language: what is read, what is refused, and where the refusal points."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobwatchdog.model import KIND_DEFAULTS, Incident, IncidentId, Job, JobId, Kind, Suspects
from jobwatchdog.policy.conditions import Condition, ConditionError
from jobwatchdog.policy.durations import format_duration, parse_duration
from jobwatchdog.policy.init import starter
from jobwatchdog.policy.load import PolicyErrors, check_policy, load_policy
from jobwatchdog.policy.match import facts, matching_rules
from jobwatchdog.policy.schema import json_schema

HERE = Path(__file__).parent

HEAD = """\
apiVersion: jobwatchdog/v1
kind: Policy
metadata: {name: test}
spec:
  mode: enforce
  guardrails: {restarts: {max: 4, per: 6h}, drains: {max: 1, per: 24h}}
"""


def incident(kind: Kind = Kind.RANK_CRASH, **changes: Any) -> Incident:
    defaults = KIND_DEFAULTS[kind]
    values: dict[str, Any] = {
        "id": IncidentId("i-1"), "job": JobId("job"), "attempt": 0, "kind": kind, "confidence": 0.9,
        "cause_class": defaults.cause_class, "restart_helps": defaults.restart_helps, "suspects": Suspects(),
    }  # fmt: skip
    return Incident(**{**values, **changes})


JOB = Job(id=JobId("job"), launcher="slurm", labels={"tier": "pretrain"})


def rule(text: str) -> str:
    return f"{HEAD}  rules:\n{text}"


def said(text: str) -> list[str]:
    return [str(problem) for problem in check_policy(text, "p.yaml")[1]]


def test_a_policy_full_of_mistakes_names_every_one() -> None:
    """File, line, column, what was read, what is meant: the whole list is the snapshot beside."""
    text = (HERE / "mistakes.yaml").read_text()
    with pytest.raises(PolicyErrors) as caught:
        load_policy(text, "mistakes.yaml")
    assert [str(problem) for problem in caught.value.problems] == (HERE / "mistakes.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("written", "line", "column"),
    [
        ("      when: incident.confidnce > 0.5", 11, 13),
        ("      when: 'incident.confidnce > 0.5'", 11, 14),
        ('      when: "\\"a\\" == \\"b\\" && incident.confidnce > 0.5"', 11, 32),
        ("      when: |\n        true &&\n          incident.confidnce > 0.5", 13, 11),
        ("      when: >\n        true\n        && incident.confidnce > 0.5", 13, 12),
        ("      when: true\n        && incident.confidnce > 0.5", 12, 12),
    ],
)
def test_a_fault_in_a_condition_has_its_place_in_the_file(written: str, line: int, column: int) -> None:
    """However the text is quoted or folded."""
    text = rule(f"    - name: a\n      on: [xid]\n      ladder: [{{do: [ask]}}]\n{written}\n")
    hint = "(did you mean `incident.confidence`?)"
    fault = "spec.rules[0].when: unknown name `incident.confidnce`"
    assert said(text) == [f"p.yaml:{line}:{column}: {fault} {hint}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("incident.duration_s > 300", "decimal point"),
        ("incident.kind == 3", "a text and a whole number"),
        ("incident.kind = 'xid'", "compare with `==`"),
        ("incident.count", "must be true or false"),
        ("incident.kind == 'nccl_timeot'", "did you mean `nccl_timeout`?"),
        ("restart_helps(incident)", "unknown function"),
        ("job.lables['tier'] == 'x'", "did you mean `job.labels`?"),
        ("incident.confidence >", "syntax"),
        ("", "syntax"),
    ],
)
def test_types_are_checked_when_the_policy_is_loaded(text: str, words: str) -> None:
    """Not in the night when the condition is first asked."""
    with pytest.raises(ConditionError) as caught:
        Condition(text)
    assert words in "; ".join(f"{fault.message} {fault.suggestion}" for fault in caught.value.faults)


def test_a_missing_measurement_makes_a_condition_unknown() -> None:
    """Neither true nor false; the name of what is missing is told."""
    condition = Condition("incident.clock_ratio < 0.75")
    verdict = condition.ask(facts(incident(), JOB, 0.0))
    assert verdict.value is None
    assert "missing: incident.clock_ratio" in verdict.because
    assert condition.ask(facts(incident(measures={"clock_ratio": 0.5}), JOB, 0.0)).value is True


def test_a_missing_label_is_unknown_and_no_error() -> None:
    """A policy for one tier is not asked to stop at a job without labels."""
    verdict = Condition('job.labels["team"] == "a"').ask(facts(incident(), JOB, 0.0))
    assert verdict.value is None
    assert "team" in verdict.because


def test_every_declared_name_has_a_value_or_is_known_to_be_missing() -> None:
    """Declarations and facts are two lists; they must be one."""
    from jobwatchdog.policy.conditions import VARIABLES

    assert set(facts(incident(), JOB, 0.0)) == set(VARIABLES)


def test_rules_are_asked_in_order_and_say_why_not() -> None:
    """Each answer carries the checks that led to it."""
    policy = load_policy(
        rule(
            "    - {name: late, on: [rank_crash], for: 5m, ladder: [{do: [ask]}]}\n"
            "    - {name: now, on: [rank_crash], ladder: [{do: [ask]}]}\n"
        ),
        "p.yaml",
    )
    young = matching_rules(policy, incident(opened_s=0.0), JOB, 60.0)
    assert [one.name for one, _ in young] == ["now"]
    assert [check.because for check in young[0][1] if not check.passed] == ["lasts 1m, 5m wanted"]
    assert [one.name for one, _ in matching_rules(policy, incident(opened_s=0.0), JOB, 301.0)] == ["late", "now"]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (
            "    - {name: a, on: [config_or_code_bug], ladder: [{do: [restart]}]}",
            "config_or_code_bug is never restarted",
        ),
        ("    - {name: a, on: [xid], ladder: [{do: [restart]}]}", "warning: a restart without `verify`"),
        ("    - {name: a, on: [xid], when: 'false', ladder: [{do: [ask]}]}", "warning: never true"),
        (
            "    - {name: a, on: [xid], ladder: [{do: [ask]}]}\n    - {name: b, on: [xid], ladder: [{do: [ask]}]}",
            "warning: never reached: the earlier rule a takes every xid",
        ),
        (
            "    - {name: a, on: [xid], ladder: [{do: [ask]}]}\n    - {name: a, on: [ecc], ladder: [{do: [ask]}]}",
            "the rule name 'a' is taken",
        ),
        ("    - {name: a, on: [xid], ladder: [{do: [stop, collect]}]}", "`collect` after the processes were ended"),
        ("    - {name: a, on: [xid], ladder: [{do: [restart, restart]}]}", "two restarts in one rung"),
        (f"    - {{name: a, on: [xid], ladder: [{', '.join(['{do: [restart]}'] * 5)}]}}", "unreachable rung"),
        ("    - {name: a, on: [gpu_lost], ladder: [{do: [restart]}]}", "a plain restart rarely helps after gpu_lost"),
        ("    - {name: a, on: [xid], ladder: [{do: [{notify: {to: oncal}}]}]}", "'oncal' is not under spec.notify"),
    ],
)
def test_what_is_allowed_and_yet_wrong_is_told(rules: str, words: str) -> None:
    """Errors where harm would follow, warnings elsewhere."""
    assert any(words in problem for problem in said(rule(rules + "\n")))


def test_a_policy_without_a_mode_only_observes_and_says_so() -> None:
    """The default is the harmless one."""
    text = rule("    - {name: a, on: [xid], ladder: [{do: [ask]}]}\n").replace("  mode: enforce\n", "")
    assert load_policy(text, "p.yaml").spec.mode == "observe"
    assert any("no mode given" in problem for problem in said(text))


def test_a_budget_that_is_not_written_is_told() -> None:
    """The default holds, and is named."""
    text = rule("    - {name: a, on: [xid], ladder: [{do: [restart]}]}\n").replace("restarts: {max: 4, per: 6h}, ", "")
    assert any("default of 4 within 6h holds" in problem for problem in said(text))


@pytest.mark.parametrize("text", ["", "a", "- 1", "a: [", "a: 1\na: 2", "\t", "\0", "? [a]: b", "a: &x *x", "{1: 2}"])
def test_what_is_no_policy_is_refused_in_words(text: str) -> None:
    """No traceback for any text."""
    policy, problems = check_policy(text, "p.yaml")
    assert policy is None
    assert problems


@given(st.text(max_size=80))
def test_no_text_makes_a_condition_crash(text: str) -> None:
    """Refused with a place, or accepted."""
    with suppress(ConditionError):
        Condition(text)


@given(st.integers(min_value=1, max_value=10**7))
def test_durations_are_read_as_they_are_written(seconds: int) -> None:
    """A round trip."""
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400.0), ("15m", 900.0), ("90s", 90.0), ("1h30m", 5400.0), ("0.5h", 1800.0)]
)
def test_durations(text: str, seconds: float) -> None:
    """Units may be joined and have fractions."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "h", "-1h", "1h 30m x", 5, True, None, "1e3s"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    """A bare number too: nobody knows its unit."""
    with pytest.raises(ValueError):
        parse_duration(text)


def test_the_schema_is_the_same_each_time_and_knows_every_key() -> None:
    """Editors get the names that people write, not those of the code."""
    text = json.dumps(json_schema())
    assert text == json.dumps(json_schema())
    assert '"from_"' not in text
    assert '"for_"' not in text
    assert '"from"' in text


def test_the_starter_policy_is_good() -> None:
    """Except for the address that only its reader knows."""
    policy, problems = check_policy(starter("My Job!"), "p.yaml")
    assert policy is not None
    assert policy.name == "my-job"
    assert policy.spec.mode == "observe"
    assert [p for p in problems if "spec.notify" not in p.message] == []
