"""The policy language as types; pydantic checks documents against them and writes their JSON Schema."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from jobwatchdog.model import Json, Kind, Mode, Verb
from jobwatchdog.policy.conditions import Condition
from jobwatchdog.policy.durations import Duration, format_duration

CHANGES_THE_RUN = frozenset({"nccl", "allocator", "env", "skip_data", "exclude_nodes"})
START_FROM = ("last_good_checkpoint", "latest", "scratch")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, arbitrary_types_allowed=True)


class NcclOverride(_Strict):
    """NCCL settings of the next attempt, merged with the user's own."""

    algo: Literal["tree", "ring"] | None = Field(None, description="tree: switch all-reduce from ring to tree")
    ib_timeout: int | None = Field(None, ge=1, le=31, description="NCCL_IB_TIMEOUT: 4.096 µs × 2^n")
    ib_retry_cnt: int | None = Field(None, ge=1, le=7, description="NCCL_IB_RETRY_CNT")
    debug: Literal["WARN", "INFO"] | None = None


class AllocatorOverride(_Strict):
    """Settings of PyTorch's CUDA allocator for the next attempt."""

    expandable_segments: bool | None = None
    max_split_size_mb: int | None = Field(None, ge=20)
    garbage_collection_threshold: float | None = Field(None, gt=0, lt=1)


class Restart(_Strict):
    """End the job's processes and start it again."""

    from_: str = Field(
        "last_good_checkpoint", alias="from", description="last_good_checkpoint, latest, scratch, or a path"
    )
    exclude_nodes: Literal["suspects"] | list[str] | None = None
    skip_data: int | None = Field(
        None, ge=0, description="batches to skip after the resume; the job reads JOBWATCHDOG_SKIP_BATCHES"
    )
    nccl: NcclOverride | None = None
    allocator: AllocatorOverride | None = None
    env: dict[str, str] = Field(default_factory=dict)
    allow_scratch: bool | None = Field(None, description="start from nothing when no checkpoint is good")
    grace: Duration | None = Field(
        None, serialization_alias="grace_s", description="between SIGTERM and SIGKILL, default 1s"
    )

    @field_validator("from_")
    @classmethod
    def _known_start(cls, value: str) -> str:
        if value not in START_FROM and "/" not in value:
            near = difflib.get_close_matches(value, START_FROM, 1)
            words = f"; did you mean {near[0]}?" if near else f"; write {', '.join(START_FROM)}, or a path with a slash"
            raise ValueError(f"{value!r} is no place to start from{words}")
        return value


class Nodes(_Strict):
    """Which nodes: the incident's suspects, or names."""

    nodes: Literal["suspects"] | list[str] = "suspects"
    reason: str | None = None


class Collect(_Strict):
    """What to save before anything is killed."""

    stacks: bool = True
    nccl_flight_recorder: bool = False
    kernel_log: bool = False
    nvidia_smi: bool = False


class Notify(_Strict):
    """Tell somebody; `to` is a name under `notify:` of the spec."""

    to: str
    severity: Literal["info", "warning", "critical"] = "warning"
    message: str | None = None


class Signal(_Strict):
    """Send a signal to the job's processes."""

    signal: Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGHUP"] = "SIGUSR1"
    ranks: Literal["suspects", "all"] = "all"


class Exec(_Strict):
    """A site's own command; an argument list, never a shell."""

    argv: list[str] = Field(min_length=1)
    timeout: Duration = 60.0


class Nothing(_Strict):
    """An action without arguments."""


def _bare(value: Any) -> Any:
    # `- stop` and `- stop: ` mean the same as `- stop: {}`.
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, dict):
        return {key: {} if part is None or part is True else part for key, part in value.items()}
    return value


class Step(_Strict):
    """One action of a rung: a mapping with exactly one verb."""

    restart: Restart | None = None
    drain: Nodes | None = None
    undrain: Nodes | None = None
    failover_sm: Nothing | None = None
    empty_cache: Nothing | None = None
    collect: Collect | None = None
    hold: Nothing | None = None
    stop: Nothing | None = None
    signal: Signal | None = None
    notify: Notify | None = None
    ask: Nothing | None = None
    exec: Exec | None = None

    @model_validator(mode="after")
    def _one_verb(self) -> Step:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"one action an entry, found {', '.join(sorted(self.model_fields_set)) or 'none'}")
        return self

    @property
    def verb(self) -> Verb:
        """The action's name."""
        return Verb(next(iter(self.model_fields_set)))

    @property
    def changes_the_run(self) -> bool:
        """Whether the next attempt will differ, so that the same failure need not come again."""
        return self.restart is not None and bool(CHANGES_THE_RUN & set(self.args()))

    def args(self) -> dict[str, Json]:
        """The action's arguments as plain JSON, without those left out."""
        part: BaseModel = getattr(self, self.verb.value)
        found: dict[str, Json] = part.model_dump(by_alias=True, exclude_none=True, mode="json")
        if found.get("env") == {}:
            del found["env"]
        return found


class VerifySpec(_Strict):
    """What must be seen after a rung: that many new steps within that time."""

    steps_advance: int = Field(1, ge=1)
    within: Duration = 900.0


class Rung(_Strict):
    """What to do at one recurrence."""

    do: list[Annotated[Step, BeforeValidator(_bare)]] = Field(min_length=1)
    verify: VerifySpec | None = None


class Rule(_Strict):
    """Which incidents, under which condition, and the ladder of remedies."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    on: list[Kind] = Field(min_length=1)
    when: Condition | None = None
    for_: Duration | None = Field(None, alias="for", description="only when the fault lasts this long already")
    ladder: list[Rung] = Field(min_length=1)
    reset_after: Duration = 86_400.0
    verify: VerifySpec | None = None

    @field_validator("on")
    @classmethod
    def _once(cls, value: list[Kind]) -> list[Kind]:
        if len(set(value)) != len(value):
            raise ValueError("a kind is named twice")
        return value


class Budget(_Strict):
    """At most `max` in any window of `per`."""

    max: int = Field(ge=0)
    per: Duration

    @property
    def words(self) -> str:
        """In words: `4 within 6h`."""
        return f"{self.max} within {format_duration(self.per)}"


class DrainBudget(Budget):
    """Over the whole fleet; `max_fraction` of its nodes besides."""

    max_fraction: float = Field(0.05, gt=0, le=1)


class Breaker(_Strict):
    """Opens after that many failed actions; only a person closes it."""

    failed_actions: int = Field(3, ge=1)
    within: Duration = 1800.0


class Guardrails(_Strict):
    """Bounds on what the policy may do. The defaults hold where a policy is silent."""

    restarts: Budget = Budget(max=4, per="6h")
    drains: DrainBudget = DrainBudget(max=8, per="24h", max_fraction=0.05)
    breaker: Breaker = Breaker()
    stale_after: Duration = 600.0
    protect_nodes: list[str] = Field(default_factory=list)
    approval: list[Verb] = Field(default_factory=list)
    # What is only read in a text, and the run may survive, is believed to 0.65 (incidents): never enough by default.
    min_confidence: float = Field(0.7, ge=0.5, le=1, description="below this nothing destructive is done")


class Target(_Strict):
    """Where a notification goes."""

    webhook: str | None = Field(None, pattern=r"^https?://")
    command: list[str] | None = None

    @model_validator(mode="after")
    def _one(self) -> Target:
        if (self.webhook is None) == (self.command is None):
            raise ValueError("give either `webhook` or `command`")
        return self


class Spec(_Strict):
    """The policy itself."""

    mode: Mode = Mode.OBSERVE
    select: Condition | None = None
    rules: list[Rule] = Field(min_length=1)
    guardrails: Guardrails = Guardrails()
    notify: dict[str, Target] = Field(default_factory=dict)


class Metadata(_Strict):
    """The policy's name, and free notes."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    description: str | None = None


class Policy(_Strict):
    """A whole policy file."""

    api_version: Literal["jobwatchdog/v1"] = Field(alias="apiVersion")
    kind: Literal["Policy"]
    metadata: Metadata
    spec: Spec
    _file: str = PrivateAttr(default="")

    @property
    def file(self) -> str:
        """Where it was read from."""
        return self._file

    @property
    def name(self) -> str:
        """Its name in decisions and in the ledger."""
        return self.metadata.name
