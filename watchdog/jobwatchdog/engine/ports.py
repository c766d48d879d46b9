"""What the engine asks of its parts, so that each can be replaced in a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobwatchdog.detectors.base import Detector
from jobwatchdog.model import (
    ApprovalGiven,
    Finding,
    Incident,
    IncidentId,
    IncidentState,
    Job,
    JobId,
    PastAction,
    Plan,
    PlanId,
    PlanMade,
    PlanRefused,
    Receipt,
)

__all__ = ["Change", "Detector", "Planner", "Tracker"]


class Change(Protocol):
    """A new value of an incident and what led to it."""

    @property
    def incident(self) -> Incident:
        """The whole new value."""
        ...

    @property
    def why(self) -> str:
        """In words."""
        ...


class Tracker(Protocol):
    """Groups findings into incidents."""

    def observe(self, finding: Finding, now_s: float, attempt: int, *, ending_it: bool = False) -> Sequence[Change]:
        """Fold one finding; `ending_it`: a remedy ends the attempt right now."""
        ...

    def stepped(self, job: JobId, attempt: int, step: int) -> None:
        """The newest step of an attempt."""
        ...

    def tick(self, now_s: float) -> Sequence[Change]:
        """Time passed."""
        ...

    def next_deadline_s(self) -> float | None:
        """When a tick would matter."""
        ...

    def set_state(self, id: IncidentId, state: IncidentState, now_s: float, why: str) -> Sequence[Change]:
        """Move one incident."""
        ...

    def fix_cause(self, id: IncidentId, now_s: float) -> Sequence[Change]:
        """A plan starts: later facts do not change the cause any more."""
        ...

    def job_changed(self, job: Job, now_s: float) -> Sequence[Change]:
        """A new attempt runs."""
        ...

    def log_ended(self, now_s: float) -> Sequence[Change]:
        """Judge what is pending."""
        ...

    def ranked(self) -> list[Incident]:
        """Most worth looking at first."""
        ...


class Planner(Protocol):
    """Chooses the plan for an incident, within its policy's guardrails."""

    def decide(self, incident: Incident, job: Job, now_s: float) -> PlanMade | PlanRefused | None:
        """A plan, a refusal, or nothing new to say."""
        ...

    def load_history(self, past: Sequence[PastAction]) -> None:
        """What was ordered before this engine lived."""
        ...

    def plan_started(self, plan: Plan, now_s: float) -> None:
        """Its first action is about to be ordered."""
        ...

    def action_finished(self, receipt: Receipt, now_s: float) -> None:
        """For the breaker and the budgets."""
        ...

    def verify_failed(self, plan_id: PlanId, now_s: float) -> None:
        """The plan did not help: the next rung follows."""
        ...

    def verify_passed(self, plan_id: PlanId, now_s: float) -> None:
        """The plan helped."""
        ...

    def approval(self, event: ApprovalGiven) -> None:
        """A person decided."""
        ...

    def close_breaker(self, policy: str) -> None:
        """A person closed it."""
        ...
