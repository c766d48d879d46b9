"""The engine's promises, one by one; the transcripts beside show whole incidents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from jobwatchdog.detectors.base import BaseDetector
from jobwatchdog.engine import Engine, InvalidTransition, Stage
from jobwatchdog.engine.lifecycle import ALLOWED
from jobwatchdog.engine.runtime import JobRuntime
from jobwatchdog.model import (
    Action,
    ActionFinished,
    ActionOrdered,
    BreakerClosed,
    Decision,
    DetectorFailed,
    Event,
    Finding,
    HistoryLoaded,
    IncidentChanged,
    IncidentState,
    Job,
    JobId,
    JobPhase,
    JobRegistered,
    Kind,
    LogEnded,
    Outcome,
    PastAction,
    PlanMade,
    PlanRefused,
    Receipt,
    Signal,
    SignalsObserved,
    StepReport,
    Tick,
    Verb,
)
from jobwatchdog.model.codec import dumps, json_text, loads
from jobwatchdog.testing.invariants import InvariantBroken, Invariants
from jobwatchdog.testing.scene import JOB, Scene

POLICY = """
apiVersion: jobwatchdog/v1
kind: Policy
metadata: {name: test}
spec:
  mode: enforce
  rules:
    - name: crash
      on: [rank_crash, hang_no_output, cuda_error]
      ladder:
        - do: [{restart: {}}]
        - do: [{restart: {}}]
        - do: [{restart: {}}]
      verify: {steps_advance: 5, within: 10m}
  guardrails:
    min_confidence: 0.5  # the scenes tell faults in text alone
    restarts: {max: 2, per: 6h}
"""


@pytest.fixture
def scene(make_engine: Callable[..., Engine]) -> Iterator[Scene]:
    """A job that trains; invariants are checked with every event, and once more at the end."""
    on_stage = Scene(make_engine(POLICY), Invariants(restarts_max=2, restarts_per_s=6 * 3600.0))
    on_stage.registered()
    on_stage.steps(1.0, 1, 20)
    yield on_stage
    on_stage.until(on_stage.now_s + 3600.0)
    times = [decision.now_s for decision in on_stage.decisions]
    assert all(a <= b for a, b in pairwise(times))


def orders(scene: Scene) -> list[Action]:
    return [decision.action for decision in scene.decisions if isinstance(decision, ActionOrdered)]


def states(scene: Scene) -> list[IncidentState]:
    return [decision.incident.state for decision in scene.decisions if isinstance(decision, IncidentChanged)]


def crash_and_restart(scene: Scene, at_s: float, attempt: int) -> None:
    scene.match(at_s, Kind.RANK_CRASH, rank=1)
    scene.until(at_s + 5)
    scene.receipt(at_s + 6, Outcome.DONE, new_attempt=attempt, checkpoint_step=20)
    scene.registered(at_s + 7, attempt)


def test_the_cause_settles_before_a_plan_is_made(scene: Scene) -> None:
    """A late fact has two seconds to change the verdict."""
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.until(31.9)
    assert orders(scene) == []
    scene.until(32.0)
    assert [action.key for action in orders(scene)] == ["restart:job:0"]


def test_without_a_settle_time_the_plan_follows_at_once(make_engine: Callable[..., Engine]) -> None:
    """`settle_s=0`: the same event brings incident, plan and order."""
    scene = Scene(make_engine(POLICY, settle_s=0.0))
    scene.registered()
    decided = [type(decision) for decision in scene.match(30.0, Kind.RANK_CRASH, rank=1)]
    assert decided[0] is IncidentChanged
    assert decided[-1] is ActionOrdered


def test_one_fault_told_by_many_lines_is_one_restart(scene: Scene) -> None:
    """Every rank shouts, also while the restart is under way."""
    for i in range(40):
        scene.match(30.0 + i * 0.1, Kind.RANK_CRASH, rank=i % 2, line=i)
    scene.until(60.0)
    assert len(orders(scene)) == 1


def test_steps_of_the_new_attempt_close_the_incident(scene: Scene) -> None:
    """Five new steps beyond the one it resumed from, not four."""
    crash_and_restart(scene, 30.0, 1)
    scene.steps(45.0, 21, 24)
    assert states(scene)[-1] is IncidentState.VERIFYING
    scene.step(50.0, 25)
    assert states(scene)[-1] is IncidentState.RESOLVED


def test_a_job_that_ends_well_because_we_ended_it_is_still_restarted(scene: Scene) -> None:
    """A trainer that saves and exits with 0 on SIGTERM has not finished."""
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.until(33.0)
    scene.state(34.0, JobPhase.SUCCEEDED, exit_code=0)
    scene.receipt(35.0, Outcome.DONE, new_attempt=1, checkpoint_step=20)
    scene.registered(36.0, 1)
    scene.steps(40.0, 21, 25)
    assert states(scene)[-1] is IncidentState.RESOLVED


def test_the_step_resumed_from_is_not_a_new_one(scene: Scene) -> None:
    """A job that prints its first line for the checkpoint's own step has made none yet."""
    crash_and_restart(scene, 30.0, 1)
    scene.steps(45.0, 20, 24)
    assert states(scene)[-1] is IncidentState.VERIFYING
    scene.step(51.0, 25)
    assert states(scene)[-1] is IncidentState.RESOLVED


def test_a_checkpoint_counted_in_something_else_does_not_mislead(scene: Scene) -> None:
    """Its number may be tokens: five steps seen are five steps."""
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.until(35.0)
    scene.receipt(36.0, Outcome.DONE, new_attempt=1, checkpoint_step=4_000_000)
    scene.registered(37.0, 1)
    scene.steps(45.0, 21, 25)
    assert states(scene)[-1] is IncidentState.RESOLVED


def test_a_receipt_that_comes_after_the_steps_still_verifies(scene: Scene) -> None:
    """The new attempt may be quicker than the word of its start."""
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.until(33.0)
    scene.registered(35.0, 1)
    scene.steps(36.0, 21, 26)
    scene.receipt(43.0, Outcome.DONE, new_attempt=1, checkpoint_step=20)
    assert states(scene)[-1] is IncidentState.RESOLVED


def test_the_budget_holds_and_a_person_is_told(scene: Scene) -> None:
    """Two restarts in six hours; the third crash is refused, with the guardrail's name."""
    for i in range(3):
        at_s = 100.0 * (i + 1)
        scene.match(at_s, Kind.RANK_CRASH, rank=1)
        scene.until(at_s + 5)
        if scene.in_flight is not None:
            scene.receipt(at_s + 6, Outcome.DONE, new_attempt=i + 1, checkpoint_step=20)
            scene.registered(at_s + 7, i + 1)
            scene.steps(at_s + 10, 21, 30)
    assert [action.verb for action in orders(scene)].count(Verb.RESTART) == 2
    assert any(isinstance(decision, PlanRefused) for decision in scene.decisions)


@pytest.mark.parametrize("end", [JobPhase.CANCELLED, JobPhase.SUCCEEDED])
def test_nothing_is_done_after_the_jobs_end(scene: Scene, end: JobPhase) -> None:
    """Neither for what was open nor for what is seen afterwards."""
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.state(31.0, end)
    scene.match(32.0, Kind.CUDA_ERROR, rank=1)
    scene.until(500.0)
    assert orders(scene) == []
    last = {d.incident.id: d.incident.state for d in scene.decisions if isinstance(d, IncidentChanged)}
    assert set(last.values()) == {IncidentState.IGNORED}


def test_a_job_started_again_by_its_user_is_watched_again(scene: Scene) -> None:
    """The end of one attempt is not the end of the next."""
    scene.state(30.0, JobPhase.CANCELLED)
    scene.registered(40.0, 1)
    scene.steps(41.0, 1, 5)
    scene.match(50.0, Kind.RANK_CRASH, rank=1)
    scene.until(60.0)
    assert [action.key for action in orders(scene)] == ["restart:job:1"]


def test_the_end_of_an_old_attempt_says_nothing_of_the_new(scene: Scene) -> None:
    """A late word of attempt 0 does not end attempt 1."""
    crash_and_restart(scene, 30.0, 1)
    scene.attempt = 0
    scene.state(40.0, JobPhase.CANCELLED)
    scene.steps(45.0, 21, 26)
    assert states(scene)[-1] is IncidentState.RESOLVED


def test_an_intent_without_receipt_is_waited_for(make_engine: Callable[..., Engine]) -> None:
    """After a crash of the watchdog: the same fault is seen again, and the restart is not ordered again."""
    first = Scene(make_engine(POLICY))
    first.registered()
    first.match(10.0, Kind.RANK_CRASH, rank=1)
    first.until(13.0)
    (action,) = orders(first)
    past = PastAction(action=action, policy="test", rule="crash", rung=1, kind=Kind.RANK_CRASH, ordered_s=12.0)

    second = Scene(make_engine(POLICY))
    second.feed(HistoryLoaded(now_s=20.0, job=JOB, past=(past,)))
    second.registered(20.0)
    assert second.engine.in_flight() == [action]
    second.match(21.0, Kind.RANK_CRASH, rank=1)
    second.until(60.0)
    assert orders(second) == []
    receipt = Receipt(action=action.id, outcome=Outcome.DONE, data={"new_attempt": 1, "checkpoint_step": 20})
    second.feed(ActionFinished(now_s=61.0, receipt=receipt))
    second.registered(62.0, 1)
    second.steps(63.0, 21, 30)
    second.until(200.0)
    assert orders(second) == []


def test_a_story_folded_again_gives_the_same_bytes(scene: Scene, make_engine: Callable[..., Engine]) -> None:
    """Through the codec, as from the ledger: every decision of every event, and the same state after it."""
    events = list(_story())
    engines = [make_engine(POLICY), make_engine(POLICY)]
    told = [[dumps(decision) for event in events for decision in engines[0].handle(event)]]
    again = [loads(Event, dumps(event)) for event in events]
    told.append([dumps(decision) for event in again for decision in engines[1].handle(event)])
    assert told[0] == told[1]
    assert len(told[0]) > 5
    assert engines[0].snapshot() == engines[1].snapshot()
    assert engines[0].in_flight() == engines[1].in_flight()
    for line in told[0]:
        loads(Decision, line)


def _story() -> Iterator[Event]:
    source = Scene(_Recorder())  # type: ignore[arg-type]
    yield JobRegistered(now_s=0, job=Job(id=JOB, launcher="local", can_restart=True, labels={"b": "1", "a": "2"}))
    source.steps(1.0, 1, 20)
    source.match(30.0, Kind.CUDA_ERROR, rank=1)
    source.match(31.0, Kind.RANK_CRASH, rank=0)
    yield from _Recorder.events
    for now_s in (33, 34.5, 700.0, 5000.0):
        yield Tick(now_s=now_s)
    yield BreakerClosed(now_s=5000.0, policy="test", by="ann")
    yield LogEnded(now_s=5001.0, job=JOB)


class _Recorder:
    """Stands where an engine would, to let a scene write events down."""

    events: list[Event] = []  # noqa: RUF012 (filled once a story)

    def __init__(self) -> None:
        type(self).events = []

    def handle(self, event: Event) -> list[Decision]:
        self.events.append(event)
        return []

    def next_deadline_s(self) -> float | None:
        return None


class _Broken(BaseDetector):
    id = "broken"

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        raise ZeroDivisionError("a mistake of ours")


def test_a_detector_that_raises_is_left_out_and_told(make_engine: Callable[..., Engine]) -> None:
    """Once, by name; the job's other detectors go on, and other jobs are not touched."""
    engine = make_engine(POLICY)
    build = engine._detectors_for
    engine._detectors_for = lambda job: [_Broken(job), *build(job)]
    scene = Scene(engine)
    scene.registered()
    scene.step(1.0, 1)
    scene.match(2.0, Kind.RANK_CRASH, rank=1)
    scene.until(10.0)
    failed = [decision for decision in scene.decisions if isinstance(decision, DetectorFailed)]
    assert [(one.detector, one.error) for one in failed] == [("broken", "ZeroDivisionError: a mistake of ours")]
    assert len(orders(scene)) == 1
    assert '"broken_detectors":{"broken":"ZeroDivisionError: a mistake of ours"}' in json_text(engine.snapshot())


def test_a_rehearsal_orders_nothing(make_engine: Callable[..., Engine]) -> None:
    """Replay of a log: what the policy would have done is told, in its own mode; nothing waits for a receipt."""
    scene = Scene(make_engine(POLICY, rehearse=True))
    scene.registered()
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.at(31.0, LogEnded(now_s=31.0, job=JOB))
    plans = [decision.plan for decision in scene.decisions if isinstance(decision, PlanMade)]
    assert [(plan.mode, plan.rung, plan.actions[0].verb) for plan in plans] == [("enforce", 1, Verb.RESTART)]
    assert orders(scene) == []


def test_the_end_of_a_log_does_not_wait_to_settle(make_engine: Callable[..., Engine]) -> None:
    """Nothing more will come: what is open is planned now."""
    scene = Scene(make_engine(POLICY))
    scene.registered()
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    made = scene.feed(LogEnded(now_s=30.0, job=JOB))
    assert any(isinstance(decision, PlanMade) for decision in made)


def test_jobs_do_not_disturb_each_other(make_engine: Callable[..., Engine]) -> None:
    """Two jobs, one fault: the other has no incident and no plan."""
    engine = make_engine(POLICY)
    scenes = [Scene(engine, job=JobId(name)) for name in ("a", "b")]
    for one in scenes:
        one.registered()
    for second in range(1, 40):
        for one in scenes:
            one.step(float(second), second)
    scenes[0].match(40.0, Kind.RANK_CRASH, rank=1)
    scenes[0].until(43.0)
    assert {incident.job for incident in engine.incidents()} == {"a"}
    assert [action.key for action in orders(scenes[0])] == ["restart:a:0"]


def test_time_does_not_run_backwards(scene: Scene) -> None:
    """An event that comes late is folded as of now."""
    signal = StepReport(job=JOB, framework="test", step=21)
    scene.until(100.0)
    made = scene.engine.handle(SignalsObserved(now_s=50.0, signals=(signal,)))
    assert all(decision.now_s >= 100.0 for decision in made)
    assert scene.engine.snapshot()["now_s"] == pytest.approx(scene.engine._now)


def test_a_receipt_of_nothing_we_ordered_changes_nothing(scene: Scene) -> None:
    """Doubled receipts and those of an earlier life."""
    crash_and_restart(scene, 30.0, 1)
    before = scene.engine.snapshot()["jobs"]
    doubled = Receipt(action=orders(scene)[0].id, outcome=Outcome.FAILED)
    assert scene.feed(ActionFinished(now_s=scene.now_s, receipt=doubled)) == []
    assert scene.engine.snapshot()["jobs"] == before


def test_an_action_that_never_reports_calls_a_person(scene: Scene) -> None:
    """After half an hour nobody knows; it is not repeated."""
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.until(3000.0)
    assert IncidentState.ESCALATED in states(scene)
    assert len(orders(scene)) == 1


@pytest.mark.parametrize("old", Stage)
@pytest.mark.parametrize("new", Stage)
def test_only_moves_of_the_table_are_possible(old: Stage, new: Stage) -> None:
    """Any other raises, with the story that led there."""
    runtime = JobRuntime(Job(id=JOB, launcher="local"), [], stage=old)
    runtime.story.append("12.000 something happened")
    if old is new or (old, new) in ALLOWED:
        runtime.move(new, 1.0, "test")
        assert runtime.stage is new
    else:
        with pytest.raises(InvalidTransition, match="something happened"):
            runtime.move(new, 1.0, "test")


def test_the_invariants_would_notice() -> None:
    """The checker itself: an order without a plan, on a cancelled job, is a broken promise."""
    checks = Invariants()
    action = Action(
        id="a", key="restart:job:0", verb=Verb.RESTART, job=JOB, attempt=0, incident="i", plan="p",  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(InvariantBroken, match="nobody made this plan"):
        checks.saw(Tick(now_s=1.0), [ActionOrdered(now_s=1.0, action=action)])
