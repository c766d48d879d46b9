"""Plans, actions, receipts, and the decisions that the engine hands to the shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from jobwatchdog.model.incident import Incident, IncidentId
from jobwatchdog.model.kinds import Kind
from jobwatchdog.model.signal import JobId

PlanId = NewType("PlanId", str)
ActionId = NewType("ActionId", str)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Verb(StrEnum):
    """The actions of the policy language."""

    RESTART = "restart"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    FAILOVER_SM = "failover_sm"
    EMPTY_CACHE = "empty_cache"
    COLLECT = "collect"
    HOLD = "hold"
    STOP = "stop"
    SIGNAL = "signal"
    NOTIFY = "notify"
    ASK = "ask"
    EXEC = "exec"


DESTRUCTIVE = frozenset({Verb.RESTART, Verb.DRAIN, Verb.FAILOVER_SM, Verb.STOP, Verb.SIGNAL, Verb.EXEC})


class Mode(StrEnum):
    """What a policy may do: watch only (default), ask first, or act."""

    OBSERVE = "observe"
    APPROVE = "approve"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One imperative for one actuator.

    `id` is unique and stable: the same decision made again has the same id. `key` is what must happen at
    most once in the world: for a restart `restart:<job>:<attempt that failed>`. `args` is the rung's
    mapping as validated by the policy, with suspects resolved to names.
    """

    id: ActionId
    key: str
    verb: Verb
    job: JobId
    attempt: int
    incident: IncidentId
    plan: PlanId
    args: Mapping[str, Json] = field(default_factory=dict)
    not_after_s: float | None = None  # stale_after: not begun by then = dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """What must be seen after a plan: `steps` new steps within `within_s`, else the next rung."""

    steps: int = 1
    within_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered actions for one incident, now; actions run one after the other, the first failure ends it."""

    id: PlanId
    incident: IncidentId
    job: JobId
    policy: str
    rule: str
    rung: int  # from 1
    mode: Mode
    actions: tuple[Action, ...]
    verify: Verify | None = None


class Outcome(StrEnum):
    """How an action ended. UNKNOWN (a crash, a lost connection) is looked into, never repeated blindly."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"  # precondition no longer held (cancelled by its user, healthy again, already done)
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an actuator reports. `detail` says in words what was done or why not; `data` holds particulars
    (`checkpoint`, `new_attempt`, `pid`, `skipped_checkpoints`)."""

    action: ActionId
    outcome: Outcome
    detail: str = ""
    started_s: float = 0.0
    finished_s: float = 0.0
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule or guard that was asked, with the values that decided it; `policy explain` prints these."""

    name: str  # "rule nccl-timeout", "guardrail restarts"
    passed: bool
    because: str


# ---- decisions: what Engine.handle returns ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Base of what the engine wants done or known. `now_s` is the time of the event that caused it."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChanged(Decision):
    """An incident was opened or changed; carries the whole new value."""

    incident: Incident
    why: str  # "opened", "cause changed from nccl_timeout", "resolved: 20 steps", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade(Decision):
    """A plan was chosen (in observe mode: would have been). `checks` is the whole trace."""

    plan: Plan
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefused(Decision):
    """No plan for this incident now, and why; said once a reason."""

    incident: IncidentId
    policy: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOrdered(Decision):
    """The shell records the intent, then runs the actuator, records the receipt, and reports `ActionFinished`."""

    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalWanted(Decision):
    """A plan waits for a person; the shell notifies and reports `ApprovalGiven`."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFailed(Decision):
    """A detector raised: it is left out for this job from now on, the others go on."""

    job: JobId
    detector: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAction:
    """One line of history, for budgets and ladders after a restart of the watchdog."""

    action: Action
    policy: str
    rule: str
    rung: int
    kind: Kind
    ordered_s: float
    outcome: Outcome | None = None  # None: intent without receipt
    finished_s: float | None = None
