"""What was done already: budgets, rungs and the breaker are counted here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jobwatchdog.model import Action, ActionId, JobId, Kind, Outcome, PastAction, Plan, PlanId, Receipt, Verb

PAST_MAX = 20_000  # actions remembered; a fleet's busy month


@dataclass(slots=True)
class PlanPast:
    """One plan that was begun."""

    policy: str
    rule: str
    rung: int
    job: JobId
    kind: Kind
    started_s: float
    onset_step: int | None = None
    failed: bool = False


@dataclass(slots=True)
class History:
    """Actions and plans of the past, from the ledger and from this life."""

    actions: dict[ActionId, PastAction] = field(default_factory=dict)
    plans: dict[PlanId, PlanPast] = field(default_factory=dict)
    failures: dict[str, list[float]] = field(default_factory=dict)  # policy → times of failures, since last closed
    open_breakers: dict[str, str] = field(default_factory=dict)  # policy → why

    def load(self, past: Sequence[PastAction]) -> None:
        """Take what the ledger remembers; what is known already stays as it is."""
        for one in sorted(past, key=lambda p: (p.ordered_s, p.action.id)):
            if one.action.id in self.actions:
                continue
            self._remember(one)
            self.plans.setdefault(
                one.action.plan,
                PlanPast(one.policy, one.rule, one.rung, one.action.job, one.kind, one.ordered_s),
            )
            if one.outcome is Outcome.FAILED:
                self.failures.setdefault(one.policy, []).append(one.finished_s or one.ordered_s)

    def started(self, plan: Plan, kind: Kind, onset_step: int | None, now_s: float) -> None:
        """A plan begins: its actions count from now on."""
        if len(self.plans) >= PAST_MAX:
            del self.plans[next(iter(self.plans))]
        self.plans[plan.id] = PlanPast(plan.policy, plan.rule, plan.rung, plan.job, kind, now_s, onset_step)
        for action in plan.actions:
            self._remember(
                PastAction(
                    action=action, policy=plan.policy, rule=plan.rule, rung=plan.rung, kind=kind, ordered_s=now_s
                )
            )

    def finished(self, receipt: Receipt, now_s: float) -> str | None:
        """Note a receipt; return the policy when the action failed."""
        past = self.actions.get(receipt.action)
        if past is None or past.outcome is not None:
            return None
        self.actions[receipt.action] = replace(past, outcome=receipt.outcome, finished_s=now_s)
        return past.policy if receipt.outcome is Outcome.FAILED else None

    def fail(self, policy: str, now_s: float, allowed: int, within_s: float) -> None:
        """Count one failure against the policy's breaker."""
        times = [t for t in self.failures.get(policy, []) if now_s - t < within_s] + [now_s]
        self.failures[policy] = times
        if len(times) >= allowed:
            self.open_breakers[policy] = f"{len(times)} failures within {within_s:g} s, the last at {now_s:.0f}"

    def close_breaker(self, policy: str) -> None:
        """A person looked."""
        self.open_breakers.pop(policy, None)
        self.failures.pop(policy, None)

    def restarts(self, job: JobId, since_s: float) -> int:
        """Restarts of a job that were ordered and are not known to have failed or been left out."""
        return sum(1 for past in self._counted(Verb.RESTART, since_s) if past.action.job == job)

    def drained(self, since_s: float) -> list[str]:
        """Nodes taken out."""
        found: set[str] = set()
        for past in self._counted(Verb.DRAIN, since_s):
            found.update(nodes_of(past.action))
        return sorted(found)

    def rungs(self, policy: str, rule: str, job: JobId, kind: Kind, since_s: float) -> list[PlanPast]:
        """Plans of one rule for one cause on one job; and those that just failed one after the other, whatever
        their cause: what a failed remedy left behind (a restart that hangs) goes on with the next rung."""
        key = (policy, rule, job)
        plans = [p for p in self.plans.values() if (p.policy, p.rule, p.job) == key and p.started_s >= since_s]
        passed = next((i for i in range(len(plans), 0, -1) if not plans[i - 1].failed), 0)
        return [p for i, p in enumerate(plans) if p.kind is kind or i >= passed]

    def _counted(self, verb: Verb, since_s: float) -> list[PastAction]:
        dead = (Outcome.FAILED, Outcome.SKIPPED)
        return [
            past
            for past in self.actions.values()
            if past.action.verb is verb and past.ordered_s >= since_s and past.outcome not in dead
        ]

    def _remember(self, past: PastAction) -> None:
        self.actions[past.action.id] = past
        if len(self.actions) > PAST_MAX:
            del self.actions[next(iter(self.actions))]


def nodes_of(action: Action) -> list[str]:
    """Return the nodes that an action names."""
    nodes = action.args.get("nodes")
    return [str(node) for node in nodes] if isinstance(nodes, list) else []
