"""Runs `x.test.yaml` beside a policy: facts or log lines in, the plans that follow compared with the expected ones.

    tests:
      - test: a second crash within a day climbs a rung
        job: {name: llm, labels: {tier: pretrain}}
        events:
          - at: 0s
            incident: {kind: rank_crash, ranks: [3], onset_step: 100}
            expect: {rule: rank-crash, rung: 1, actions: [collect, {restart: {from: last_good_checkpoint}}]}
          - at: 10m
            verify: failed
          - at: 11m
            incident: {kind: rank_crash, ranks: [3], onset_step: 120}
            expect: {rung: 2}

An event is one of `incident` (facts, as a detector would find them), `log` (the next lines of one log, read by the
real scanner, detectors and engine), `receipt: done|failed|skipped` and `verify: passed|failed` of the last plan, and
`close_breaker: WHO`. `expect` names only what matters: `rule`, `rung`, `mode`, `actions` (a verb, or a verb with the
arguments that matter), `refused` (words found in the failed check), or `nothing: true`.
Plans count against their budgets whatever the mode, so that a policy under observation can be tested in full.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from jobwatchdog.detectors.base import Detector
from jobwatchdog.engine import Engine
from jobwatchdog.incidents import CausalTable
from jobwatchdog.model import (
    KIND_DEFAULTS,
    Decision,
    Incident,
    IncidentId,
    Job,
    JobId,
    JobRegistered,
    Json,
    LogEnded,
    Outcome,
    Plan,
    PlanMade,
    PlanRefused,
    Receipt,
    SignalsObserved,
    Suspects,
    Tick,
    Verb,
)
from jobwatchdog.plan import Planner
from jobwatchdog.policy.document import Document, PolicyErrors, Problem, read
from jobwatchdog.policy.load import load_policy
from jobwatchdog.policy.model import Policy
from jobwatchdog.signals.scanner import Scanner, StreamInfo
from jobwatchdog.testing.policy_spec import EventSpec, Expected, IncidentFacts, TestFile, TestSpec

START_S: Final = 1_700_000_000.0  # when every test begins
JOB: Final = JobId("job")
SETTLE_S: Final = 12.0  # longer than an engine waits for a cause to stand still
TICKS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Kit:
    """What tests with log lines need besides a policy."""

    scanner: Callable[[], Scanner]
    detectors_for: Callable[[JobId], Sequence[Detector]]
    causes: CausalTable


@dataclass(frozen=True, slots=True)
class TestResult:
    """How one test went; `message` is a diff of what was expected and what came."""

    __test__ = False

    name: str
    file: str
    line: int
    passed: bool
    message: str = ""


# ---- running ----------------------------------------------------------------------------------------


def run_policy_tests(
    policy_text: str, policy_file: str, test_text: str, test_file: str, kit: Kit | None = None
) -> list[TestResult]:
    """Run every test; PolicyErrors when either file cannot be read."""
    policy = load_policy(policy_text, policy_file)
    tests, document, problems = read(test_text, test_file, TestFile)
    if tests is None or document is None:
        raise PolicyErrors(problems)
    _check_rules(policy, tests, document)
    return [_run(policy, spec, document, index, kit) for index, spec in enumerate(tests.tests)]


def _check_rules(policy: Policy, tests: TestFile, document: Document) -> None:
    known = [rule.name for rule in policy.spec.rules]
    problems = []
    for i, test in enumerate(tests.tests):
        for j, event in enumerate(test.events):
            if event.expect is not None and event.expect.rule not in (None, *known):
                place = document.place(("tests", i, "events", j, "expect", "rule"))
                near = difflib.get_close_matches(str(event.expect.rule), known, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"its rules: {', '.join(known)}"
                text = f"policy {policy.name} has no rule {event.expect.rule!r}"
                problems.append(Problem(document.file, *place, text, hint))
    if problems:
        raise PolicyErrors(problems)


def _run(policy: Policy, spec: TestSpec, document: Document, index: int, kit: Kit | None) -> TestResult:
    stage = _Stage(policy, spec, kit)
    for j, event in enumerate(spec.events):
        try:
            answer = stage.play(event)
        except _CannotPlayError as error:
            line, _ = document.place(("tests", index, "events", j))
            return TestResult(spec.test, document.file, line, False, str(error))
        if event.expect is None:
            continue
        difference = _difference(event.expect, answer)
        if difference:
            line, _ = document.key_place(("tests", index, "events", j, "expect"))
            return TestResult(spec.test, document.file, line, False, difference)
    line, _ = document.place(("tests", index))
    return TestResult(spec.test, document.file, line, True)


class _CannotPlayError(ValueError):
    """The test asks for something that cannot be, such as the receipt of no plan."""


Answer = PlanMade | PlanRefused | None


class _Stage:
    """One job under one policy."""

    def __init__(self, policy: Policy, spec: TestSpec, kit: Kit | None) -> None:
        self._policy = policy
        self._spec = spec
        self._kit = kit
        self._planner = Planner([policy], spec.fleet_nodes)
        self._job = Job(
            id=JOB, launcher=spec.job.launcher, name=spec.job.name, user=spec.job.user, started_s=START_S,
            world_size=spec.job.world_size, labels=spec.job.labels, can_restart=True,
        )  # fmt: skip
        self._plan: Plan | None = None
        self._count = 0
        self._reader: _Reader | None = None

    def play(self, event: EventSpec) -> Answer:
        now_s = START_S + event.at
        if event.incident is not None:
            return self._incident(event.incident, now_s)
        if event.log is not None:
            return self._log(event.log, now_s)
        if event.close_breaker is not None:
            self._planner.close_breaker(self._policy.name)
            return None
        if self._plan is None:
            raise _CannotPlayError("no plan was made before this")
        if event.verify is not None:
            told = self._planner.verify_failed if event.verify == "failed" else self._planner.verify_passed
            told(self._plan.id, now_s)
        if event.receipt is not None:
            # All before the last one were done: the first that fails ends a plan.
            for action in self._plan.actions:
                last = action is self._plan.actions[-1]
                outcome = Outcome(event.receipt) if last else Outcome.DONE
                self._planner.action_finished(Receipt(action=action.id, outcome=outcome), now_s)
        return None

    def _incident(self, facts: IncidentFacts, now_s: float) -> Answer:
        self._count += 1
        defaults = KIND_DEFAULTS[facts.kind]
        incident = Incident(
            id=IncidentId(f"i-{self._count}"), job=JOB, attempt=self._job.attempt, kind=facts.kind,
            cause_class=facts.cause_class or defaults.cause_class,
            restart_helps=facts.restart_helps or defaults.restart_helps,
            confidence=facts.confidence, count=facts.count, xid=facts.xid, symptoms=facts.symptoms,
            suspects=Suspects(nodes=facts.nodes, ranks=facts.ranks, gpus=facts.gpus, links=facts.links),
            opened_s=now_s, onset_s=now_s - facts.lasting, onset_step=facts.onset_step, measures=facts.measures,
        )  # fmt: skip
        answer = self._planner.decide(incident, self._job, now_s)
        if isinstance(answer, PlanMade):
            self._plan = answer.plan
            self._planner.plan_started(answer.plan, now_s)
            if any(action.verb is Verb.RESTART for action in answer.plan.actions):
                self._job = replace(self._job, attempt=self._job.attempt + 1)
        return answer

    def _log(self, lines: Sequence[str] | str, now_s: float) -> Answer:
        """The whole way from bytes to decisions; the engine rehearses and orders nothing."""
        if self._reader is None:
            if self._kit is None:
                raise _CannotPlayError("log lines need the detectors, which this run was not given")
            self._reader = _Reader(self._kit, self._policy, self._spec.fleet_nodes, self._job)
        text = lines if isinstance(lines, str) else "\n".join(lines)
        return self._reader.read(text.rstrip("\n") + "\n", now_s)


class _Reader:
    """A log that is written bit by bit, under an engine of its own."""

    def __init__(self, kit: Kit, policy: Policy, fleet_nodes: int | None, job: Job) -> None:
        self._scanner = kit.scanner()
        self._stream = self._scanner.open(StreamInfo("test.log", job=JOB))
        self._engine = Engine(kit.detectors_for, kit.causes, [policy], fleet_nodes=fleet_nodes, rehearse=True)
        self._engine.handle(JobRegistered(now_s=START_S, job=job))

    def read(self, text: str, now_s: float) -> Answer:
        """What was decided about these lines; the end of the log settles what they left open."""
        signals = tuple(self._scanner.feed(self._stream, text.encode()))
        self._until(now_s)
        made = self._engine.handle(SignalsObserved(now_s=now_s, signals=signals))
        made += self._until(now_s + SETTLE_S)
        if not any(isinstance(one, PlanMade) for one in made):
            made += self._engine.handle(LogEnded(now_s=now_s + SETTLE_S, job=JOB))
            made += self._until(now_s + 2 * SETTLE_S)
        answers = [one for one in made if isinstance(one, PlanMade | PlanRefused)]
        plans = [one for one in answers if isinstance(one, PlanMade)]
        return next(iter([*plans, *answers]), None)

    def _until(self, now_s: float) -> list[Decision]:
        """Ticks as the engine asks for them."""
        made: list[Decision] = []
        for _ in range(TICKS_MAX):
            due = self._engine.next_deadline_s()
            if due is None or due > now_s:
                break
            made += self._engine.handle(Tick(now_s=due))
        return made


# ---- comparing --------------------------------------------------------------------------------------


def _difference(expected: Expected, answer: Answer) -> str:
    """Empty if the answer is as expected, else a diff and the checks behind the answer."""
    wanted, came = _wanted(expected), _came(expected, answer)
    if expected.refused is not None and isinstance(answer, PlanRefused):
        words = "; ".join(f"{check.name}: {check.because}" for check in answer.checks if not check.passed)
        came["refused"] = expected.refused if expected.refused in words else words
    if wanted == came:
        return ""
    diff = difflib.unified_diff(_lines(wanted), _lines(came), "expected", "came", lineterm="", n=100)
    checks = [] if answer is None else [f"  {_mark(c.passed)} {c.name}: {c.because}" for c in answer.checks]
    return "\n".join([*diff, *(["because", *checks] if checks else [])])


def _wanted(expected: Expected) -> dict[str, Json]:
    found = expected.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    assert isinstance(found, dict)
    return found


def _came(expected: Expected, answer: Answer) -> dict[str, Json]:
    if answer is None:
        return {"nothing": True}
    if isinstance(answer, PlanRefused):
        if expected.nothing and not any(c.passed and c.name.startswith("rule ") for c in answer.checks):
            return {"nothing": True}  # no rule is meant for it
        return {"refused": "; ".join(f"{c.name}: {c.because}" for c in answer.checks if not c.passed)}
    plan = answer.plan
    came: dict[str, Json] = {"rule": plan.rule, "rung": plan.rung, "mode": plan.mode.value}
    if expected.actions is not None:
        wanted = [next(iter(action.values()), {}) for action in expected.actions]
        came["actions"] = [
            {action.verb.value: _named(action.args, wanted[i] if i < len(wanted) else {})}
            for i, action in enumerate(plan.actions)
        ]
    asked = set(expected.model_fields_set)
    return {name: value for name, value in came.items() if name in asked or asked <= {"refused", "nothing"}}


def _named(args: Mapping[str, Json], wanted: Mapping[str, Any]) -> dict[str, Json]:
    """Only the arguments that the test speaks of, also within them."""
    found: dict[str, Json] = {}
    for name, value in args.items():
        if name in wanted:
            inner = wanted[name]
            found[name] = _named(value, inner) if isinstance(value, dict) and isinstance(inner, dict) else value
    return found


def _lines(value: Mapping[str, Json]) -> list[str]:
    return yaml.safe_dump(dict(value), sort_keys=True, default_flow_style=False).splitlines()


def _mark(passed: bool) -> str:
    return "✓" if passed else "✗"
