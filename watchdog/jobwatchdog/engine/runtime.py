"""What the engine remembers of one job between events."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from jobwatchdog.detectors.base import BaseDetector, SignatureDetector
from jobwatchdog.engine.lifecycle import ALLOWED, Stage
from jobwatchdog.engine.ports import Detector
from jobwatchdog.incidents import InvalidTransition
from jobwatchdog.model import (
    Action,
    ActionId,
    Incident,
    IncidentId,
    Job,
    JobPhase,
    Json,
    Kind,
    LogMatch,
    Mode,
    PastAction,
    Plan,
    RestartHelps,
    Signal,
    StepReport,
    Suspects,
    Verb,
    Verify,
)

STORY_LINES_MAX = 50
KEYS_MAX = 10_000  # done actions remembered a job; a restart each minute for a week


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The engine's own bounds; policies bring theirs."""

    settle_s: float = 2.0  # an incident is planned when its cause stood still this long
    settle_s_max: float = 10.0  # ... and no later than this after it opened
    receipt_s_max: float = 1800.0  # an action without a receipt by then: a person is called
    replan_s: float = 60.0  # a refused incident is asked about again this often
    replans_max: int = 60
    plans_max: int = 10  # for one incident


@dataclass(slots=True)
class Steps:
    """Progress of the current attempt."""

    first: int | None = None
    newest: int | None = None

    def note(self, report: StepReport) -> bool:
        """Fold one report; True for a new step. Late and doubled ones change nothing."""
        self.first = report.step if self.first is None else min(self.first, report.step)
        fresh = self.newest is None or report.step > self.newest
        if fresh:
            self.newest = report.step
        return fresh


@dataclass(slots=True)
class Wait:
    """An open incident that is to be planned at `due_s`; None = not before its cause changes."""

    since_s: float
    due_s: float | None
    cause: tuple[Kind, Suspects, RestartHelps]
    asked: int = 0
    plans: int = 0
    blocked_s: float | None = None  # since when a guardrail alone holds its plan back
    last_try: bool = False  # a plan for it failed: no further plan means that a person is called


@dataclass(slots=True)
class PlanRun:
    """A plan that waits for approval, runs, or is being verified."""

    plan: Plan
    kind: Kind  # of its incident
    attempt: int  # that it was made for
    since_s: float
    at: int = 0  # index of the action in flight or next
    in_flight: Action | None = None
    due_s: float | None = None  # receipt, approval or hold: the deadline that counts in this stage
    abandoned: str = ""  # why nothing more of it may be ordered
    held: bool = False
    recovered: bool = False  # from the ledger, made by an earlier engine
    last_plans: int = 0  # plans made for this incident, this one included
    start_step: int | None = None  # newest step when the plan was made
    target_step: int | None = None
    base_step: int | None = None  # newest step when the plan was done, if the attempt goes on
    resume_step: int | None = None  # of the checkpoint, if it is known
    new_attempt: int | None = None

    @property
    def restarts(self) -> bool:
        """Whether the plan starts the job again."""
        return any(action.verb is Verb.RESTART for action in self.plan.actions)


@dataclass(slots=True)
class JobRuntime:
    """Job, detectors, stage, plan: everything that one job owns."""

    job: Job
    detectors: list[Detector]
    stage: Stage = Stage.WATCHING
    seen: JobPhase | None = None
    run: PlanRun | None = None
    steps: Steps = field(default_factory=Steps)
    waits: dict[IncidentId, Wait] = field(default_factory=dict)
    open: dict[IncidentId, Incident] = field(default_factory=dict)
    refused: set[tuple[IncidentId, str]] = field(default_factory=set)
    keys: dict[str, None] = field(default_factory=dict)  # ordered, and not known to have failed
    loose: dict[ActionId, tuple[Action, float]] = field(default_factory=dict)  # in flight, plan dropped; deadline
    broken: dict[str, str] = field(default_factory=dict)
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LINES_MAX))
    _listeners: dict[object, tuple[Detector, ...]] = field(default_factory=dict)
    _tickers: tuple[Detector, ...] | None = None

    def listeners(self, signal: Signal) -> tuple[Detector, ...]:
        """The detectors that this signal may concern: one that only reads lines of its kind gets only those."""
        key = (LogMatch, signal.kind) if isinstance(signal, LogMatch) else type(signal)
        found = self._listeners.get(key)
        if found is None:
            found = tuple(one for one in self.detectors if _may_concern(one, signal))
            self._listeners[key] = found
        return found

    def tickers(self) -> tuple[Detector, ...]:
        """The detectors that wait for time: most do not, and asking each at every event would cost more than lines."""
        if self._tickers is None:
            waits = [d for d in self.detectors if type(d).next_deadline_s is not BaseDetector.next_deadline_s]
            self._tickers = tuple(waits)
        return self._tickers

    def leave_out(self, detector: Detector, words: str) -> None:
        """A detector that raised is asked no more."""
        self.detectors.remove(detector)
        self.broken[detector.id] = words
        self._listeners.clear()
        self._tickers = None

    def move(self, to: Stage, now_s: float, why: str) -> None:
        """Change the stage, or say how we came to want what the table forbids."""
        if to is self.stage:
            return
        if (self.stage, to) not in ALLOWED:
            story = "\n".join(f"  {line}" for line in self.story)
            raise InvalidTransition(f"job {self.job.id} cannot go from {self.stage} to {to} ({why}); so far:\n{story}")
        self.story.append(f"{now_s:.3f} {self.stage} -> {to}: {why}")
        self.stage = to

    def spend(self, key: str) -> None:
        """Remember that what `key` names was ordered."""
        self.keys[key] = None
        if len(self.keys) > KEYS_MAX:
            del self.keys[next(iter(self.keys))]

    def snapshot(self) -> dict[str, Json]:
        """For `status`: plain JSON."""
        run = self.run
        return {
            "id": str(self.job.id),
            "target": self.job.target,
            "attempt": self.job.attempt,
            "stage": str(self.stage),
            "state": str(self.seen) if self.seen else None,
            "step": self.steps.newest,
            "plan": None if run is None else _run_snapshot(run),
            "waiting": [str(i) for i in sorted(self.waits)],
            "broken_detectors": {name: self.broken[name] for name in sorted(self.broken)},
        }


def _may_concern(detector: Detector, signal: Signal) -> bool:
    if isinstance(detector, BaseDetector) and not isinstance(signal, detector.listens):
        return False
    if not isinstance(detector, SignatureDetector) or type(detector).observe is not SignatureDetector.observe:
        return True
    return isinstance(signal, LogMatch) and signal.kind is detector.kind


def _run_snapshot(run: PlanRun) -> dict[str, Json]:
    return {
        "id": str(run.plan.id),
        "incident": str(run.plan.incident),
        "policy": run.plan.policy,
        "rule": run.plan.rule,
        "rung": run.plan.rung,
        "action": run.in_flight.verb.value if run.in_flight else None,
        "since_s": run.since_s,
        "due_s": run.due_s,
        "target_step": run.target_step,
    }


def run_from_history(past: PastAction, now_s: float, limits: Limits) -> PlanRun:
    """The plan of an intent without receipt, as far as the ledger tells: its other actions are gone."""
    action = past.action
    plan = Plan(
        id=action.plan, incident=action.incident, job=action.job, policy=past.policy, rule=past.rule,
        rung=past.rung, mode=Mode.ENFORCE, actions=(action,),
        verify=Verify() if action.verb is Verb.RESTART else None,
    )  # fmt: skip
    return PlanRun(
        plan,
        past.kind,
        action.attempt,
        past.ordered_s,
        in_flight=action,
        due_s=now_s + limits.receipt_s_max,
        recovered=True,
    )
