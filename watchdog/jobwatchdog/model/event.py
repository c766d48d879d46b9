"""Events: facts in the past tense that the engine folds. Every one carries `now_s` (Unix seconds)."""

from __future__ import annotations

from dataclasses import dataclass

from jobwatchdog.model.action import ActionId, PastAction, PlanId, Receipt
from jobwatchdog.model.job import Job
from jobwatchdog.model.signal import JobId, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRegistered(Event):
    """A job is being watched from now on; again for a new attempt or when more is known of it."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsObserved(Event):
    """A list of signals, in the order in which their source gave them."""

    signals: tuple[Signal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStarted(Event):
    """The actuator has begun (the intent is durable)."""

    action: ActionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFinished(Event):
    """The receipt of an action."""

    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalGiven(Event):
    """A person decided about a plan that waited."""

    plan: PlanId
    approved: bool
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(Event):
    """A person closed the breaker of a policy."""

    policy: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLoaded(Event):
    """What the ledger remembers of a job, read once before its first signal."""

    job: JobId
    past: tuple[PastAction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnded(Event):
    """Replay only: no more lines will come; what is pending is judged now."""

    job: JobId
