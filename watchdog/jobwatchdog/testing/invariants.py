"""What must hold of every run of the engine, whatever happens: checked from events and decisions alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jobwatchdog.model import (
    DESTRUCTIVE,
    Action,
    ActionFinished,
    ActionId,
    ActionOrdered,
    ApprovalGiven,
    Decision,
    Event,
    HistoryLoaded,
    IncidentChanged,
    IncidentId,
    IncidentState,
    JobId,
    JobPhase,
    JobRegistered,
    JobStateSeen,
    Mode,
    Outcome,
    Plan,
    PlanId,
    PlanMade,
    PlanRefused,
    SignalsObserved,
    Verb,
)

_OVER = frozenset({IncidentState.OPEN, IncidentState.RESOLVED, IncidentState.ESCALATED, IncidentState.IGNORED})


class InvariantBroken(AssertionError):  # noqa: N818 (it states a fact, as a test's name does)
    """A promise of the engine does not hold; the message says which and at what moment."""


@dataclass(slots=True)
class _JobFacts:
    attempt: int = 0
    state: JobPhase | None = None
    in_flight: Action | None = None
    plan: PlanId | None = None
    plan_incident: IncidentId | None = None
    restarts_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Invariants:
    """Feed it every event with the decisions that followed.

    `restarts_max` in `restarts_per_s` is the budget of the policy under test, None = not checked.
    """

    restarts_max: int | None = None
    restarts_per_s: float = 0.0
    jobs: dict[JobId, _JobFacts] = field(default_factory=dict)
    plans: dict[PlanId, Plan] = field(default_factory=dict)
    begun: dict[PlanId, int] = field(default_factory=dict)
    approved: set[PlanId] = field(default_factory=set)
    keys: dict[str, ActionId] = field(default_factory=dict)
    ordered: dict[ActionId, Action] = field(default_factory=dict)
    now_s: float = 0.0

    def saw(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Check one step."""
        self._event(event)
        self.now_s = max(self.now_s, event.now_s)
        for decision in decisions:
            self._require(decision.now_s == self.now_s, f"{type(decision).__name__} is dated {decision.now_s}")
            match decision:
                case PlanMade():
                    self._plan_made(decision.plan)
                case ActionOrdered():
                    self._action_ordered(decision.action)
                case IncidentChanged():
                    self._incident_changed(decision)
                case PlanRefused(incident=incident, checks=checks) if any(check.name == "receipt" for check in checks):
                    self._given_up(incident)

    def engine_restarted(self) -> None:
        """A new engine begins: plans of the old one are gone, what it ordered is not."""
        for facts in self.jobs.values():
            facts.plan = facts.plan_incident = facts.in_flight = None

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            raise InvariantBroken(f"at {self.now_s:.3f}: {words}")

    def _job(self, id: JobId) -> _JobFacts:
        return self.jobs.setdefault(id, _JobFacts())

    # ---- events ---------------------------------------------------------------------------------

    def _event(self, event: Event) -> None:
        match event:
            case JobRegistered(job=job):
                facts = self._job(job.id)
                if job.attempt > facts.attempt:
                    facts.attempt, facts.state = job.attempt, None
            case SignalsObserved(signals=signals):
                for signal in signals:
                    facts = self._job(signal.job)
                    if isinstance(signal, JobStateSeen) and signal.attempt >= facts.attempt:
                        facts.state = signal.state
            case ApprovalGiven(plan=plan, approved=True):
                self.approved.add(plan)
            case ActionFinished(receipt=receipt):
                self._finished(receipt.action, receipt.outcome)
            case HistoryLoaded(past=past):
                for one in past:
                    self.ordered[one.action.id] = one.action
                    if one.outcome in (None, Outcome.UNKNOWN):
                        self._job(one.action.job).in_flight = one.action

    def _finished(self, id: ActionId, outcome: Outcome) -> None:
        action = self.ordered.get(id)
        if action is None or outcome is Outcome.UNKNOWN:
            return
        facts = self._job(action.job)
        if facts.in_flight is not None and facts.in_flight.id == id:
            facts.in_flight = None
        if action.verb is Verb.RESTART and outcome is Outcome.DONE and facts.state is JobPhase.SUCCEEDED:
            facts.state = None  # it ended well because it was told to end
        if action.verb is Verb.RESTART and outcome in (Outcome.FAILED, Outcome.SKIPPED):
            facts.restarts_s = facts.restarts_s[:-1]  # it did not happen: nothing was spent
        if outcome in (Outcome.FAILED, Outcome.SKIPPED) and self.keys.get(action.key) == id:
            del self.keys[action.key]

    # ---- decisions ------------------------------------------------------------------------------

    def _plan_made(self, plan: Plan) -> None:
        self._require(plan.id not in self.plans, f"plan {plan.id} was made twice")
        self._require(bool(plan.actions), f"plan {plan.id} has no action")
        self.plans[plan.id] = plan

    def _action_ordered(self, action: Action) -> None:
        facts = self._job(action.job)
        what = f"{action.verb} {action.id} of plan {action.plan}"
        self._require(action.id not in self.ordered, f"{what} was ordered twice")
        self._require(action.key not in self.keys, f"{what}: {action.key} was ordered as {self.keys.get(action.key)}")
        self._require(facts.in_flight is None, f"{what} while {facts.in_flight} is in flight")
        self._require(facts.plan in (None, action.plan), f"{what} while plan {facts.plan} of the same job is not over")
        self._require(
            facts.state not in (JobPhase.CANCELLED, JobPhase.SUCCEEDED), f"{what} on a job that is {facts.state}"
        )
        if action.verb in DESTRUCTIVE:
            self._require(facts.state is not JobPhase.UNKNOWN, f"{what} on a job that cannot be seen")
        self._in_turn(action, what)
        if action.verb is Verb.RESTART:
            self._require(action.attempt == facts.attempt, f"{what} is for attempt {action.attempt}")
            self._within_budget(facts, what)
        self.ordered[action.id] = action
        self.keys[action.key] = action.id
        facts.in_flight, facts.plan, facts.plan_incident = action, action.plan, action.incident

    def _in_turn(self, action: Action, what: str) -> None:
        plan = self.plans.get(action.plan)
        self._require(plan is not None, f"{what}: nobody made this plan")
        assert plan is not None
        self._require(plan.mode is not Mode.OBSERVE, f"{what}: its policy may only observe")
        self._require(plan.mode is not Mode.APPROVE or plan.id in self.approved, f"{what}: nobody approved it")
        at = self.begun.get(plan.id, 0)
        while at < len(plan.actions) and plan.actions[at].verb is Verb.ASK and plan.id in self.approved:
            at += 1  # answered by the approval
        self._require(at < len(plan.actions) and plan.actions[at] == action, f"{what}: out of turn")
        self.begun[plan.id] = at + 1

    def _within_budget(self, facts: _JobFacts, what: str) -> None:
        if self.restarts_max is None:
            return
        recent = [t for t in facts.restarts_s if t > self.now_s - self.restarts_per_s]
        self._require(len(recent) < self.restarts_max, f"{what}: {len(recent)} restarts in the window already")
        facts.restarts_s = [*recent, self.now_s]

    def _given_up(self, incident: IncidentId) -> None:
        """No receipt came in all its time, and that was said: it is waited for no more."""
        for facts in self.jobs.values():
            if facts.in_flight is not None and facts.in_flight.incident == incident:
                facts.in_flight = None

    def _incident_changed(self, decision: IncidentChanged) -> None:
        incident = decision.incident
        facts = self._job(incident.job)
        if facts.plan_incident == incident.id and incident.state in _OVER:
            facts.plan = facts.plan_incident = None
