"""What a simulated world is made of: how bad it is, the job as it really is, and what survives the watchdog."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jobwatchdog.model import Action, Event, Kind, Outcome, PastAction, Plan, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """How bad the world is."""

    faults_until_s: float = 450.0
    ends_s: float = 4000.0  # by then all must be settled
    fault_every_s: float = 150.0
    lost: float = 0.1
    doubled: float = 0.1
    late_s: float = 4.0
    state_unknown: float = 0.03
    act_fails: float = 0.15
    act_unknown: float = 0.1
    born_dead: float = 0.15  # a restart that breaks before its first step
    born_hung: float = 0.15
    engine_dies_every_s: float = 300.0
    user_cancels: float = 0.15
    code_bug: float = 0.1  # every attempt dies of the same bug, also after the faults end


@dataclass(slots=True)
class Truth:
    """The job as it is."""

    attempt: int = 0
    state: str = "running"  # running | hung | dead | cancelled
    step: int = 0
    checkpoint: int = 0
    starts: dict[int, int] = field(default_factory=lambda: {0: 1})
    advanced_s: float = 0.0
    started_s: float = 0.0


@dataclass(slots=True)
class Book:
    """The ledger's rules without its disk: what survives the watchdog's death."""

    past: dict[str, PastAction] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    plans: dict[str, tuple[Plan, Kind]] = field(default_factory=dict)

    def intend(self, action: Action, now_s: float) -> bool:
        same = [p for p in self.past.values() if p.action.key == action.key]
        if action.id in self.past or any(p.outcome not in (Outcome.FAILED, Outcome.SKIPPED) for p in same):
            return False
        plan, kind = self.plans[action.plan]
        self.past[action.id] = PastAction(
            action=action, policy=plan.policy, rule=plan.rule, rung=plan.rung, kind=kind, ordered_s=now_s
        )
        return True

    def receipt(self, receipt: Receipt) -> None:
        past = self.past[receipt.action]
        if past.outcome in (None, Outcome.UNKNOWN):
            self.past[receipt.action] = replace(past, outcome=receipt.outcome, finished_s=receipt.finished_s)
