"""The language of `x.test.yaml`, as types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from jobwatchdog.model import CauseClass, Kind, Mode, RestartHelps, Verb
from jobwatchdog.policy.durations import Duration


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobFacts(_Strict):
    """The job that the incident happens to."""

    name: str = "test"
    user: str = "somebody"
    launcher: str = "slurm"
    world_size: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class IncidentFacts(_Strict):
    """An incident, as a detector would find it."""

    kind: Kind
    confidence: float = Field(0.9, ge=0, le=1)
    cause_class: CauseClass | None = None
    restart_helps: RestartHelps | None = None
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    symptoms: tuple[Kind, ...] = ()
    lasting: Duration = Field(0.0, description="how long the fault lasts already")
    onset_step: int | None = None
    xid: int | None = None
    count: int = 1
    measures: dict[str, float] = Field(default_factory=dict)


def _verbs(value: Any) -> Any:
    return [{one: {}} if isinstance(one, str) else one for one in value] if isinstance(value, list) else value


class Expected(_Strict):
    """What matters of the plan."""

    rule: str | None = None
    rung: int | None = None
    mode: Mode | None = None
    actions: Annotated[list[dict[Verb, dict[str, Any]]], BeforeValidator(_verbs)] | None = None
    refused: str | None = None
    nothing: Literal[True] | None = None

    @model_validator(mode="after")
    def _something(self) -> Expected:
        if not self.model_fields_set:
            raise ValueError("nothing is expected; write `nothing: true` if no plan is to follow")
        return self


class EventSpec(_Strict):
    """Something that happens at a time, and what is to follow."""

    at: Duration = 0.0
    incident: IncidentFacts | None = None
    log: tuple[str, ...] | str | None = None
    receipt: Literal["done", "failed", "skipped"] | None = None
    verify: Literal["passed", "failed"] | None = None
    close_breaker: str | None = None
    expect: Expected | None = None

    @model_validator(mode="after")
    def _one(self) -> EventSpec:
        given = self.model_fields_set & {"incident", "log", "receipt", "verify", "close_breaker"}
        if len(given) != 1:
            raise ValueError("an event is one of incident, log, receipt, verify, close_breaker")
        if self.expect is None and "incident" in given:
            raise ValueError("say what to `expect` of it")
        return self


class TestSpec(_Strict):
    """One test: a job and what happens to it."""

    __test__ = False

    test: str
    fleet_nodes: int | None = None
    job: JobFacts = JobFacts()
    events: list[EventSpec] = Field(min_length=1)


class TestFile(_Strict):
    """A whole `x.test.yaml`."""

    __test__ = False

    tests: list[TestSpec] = Field(min_length=1)
