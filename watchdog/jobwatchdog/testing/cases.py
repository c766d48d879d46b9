"""Runs a detector's `cases/*.yaml`: log lines in, and what the whole way from bytes to incidents makes of them.

    cases:
      - name: a peer that died leaves its rank behind
        log: |
          [rank3]: RuntimeError: CUDA error: an illegal memory access was encountered
        expect:
          fires: {kind: cuda_error, ranks: [3]}

`log` is one stream; `logs` maps file names to several, read by stated time as a replay does. `expect` is one of
`fires` (the incident to look at first has these facts; only what is named is compared), `silent: true` (no incident
at all) and `recovers` (an incident with these facts that is over, and none that is open).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jobwatchdog.engine import Engine
from jobwatchdog.model import (
    CauseClass,
    DetectorFailed,
    Incident,
    IncidentState,
    Job,
    JobId,
    JobRegistered,
    Json,
    Kind,
    LogEnded,
    RestartHelps,
    Signal,
    SignalsObserved,
    Tick,
)
from jobwatchdog.policy.document import Document, PolicyErrors, read
from jobwatchdog.signals.scanner import Scanner, StreamInfo
from jobwatchdog.testing.policy_tests import Kit

JOB: Final = JobId("case")
FILE: Final = "train.log"  # what a single `log` is called
TICKS_MAX: Final = 1000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Facts(_Strict):
    """What is expected of an incident; what is not named is not compared. `symptoms` are at least these."""

    kind: Kind
    ranks: list[int] = Field(default_factory=list)
    nodes: list[str] = Field(default_factory=list)
    gpus: list[str] = Field(default_factory=list)
    links: list[str] = Field(default_factory=list)
    pids: list[int] = Field(default_factory=list)
    symptoms: list[Kind] = Field(default_factory=list)
    step: int | None = None
    xid: int | None = None
    cause_class: CauseClass | None = None
    restart_helps: RestartHelps | None = None
    confidence_at_least: float = Field(0.0, ge=0, le=1)


class Expect(_Strict):
    """One of three outcomes."""

    fires: Facts | None = None
    silent: Literal[True] | None = None
    recovers: Facts | None = None

    @model_validator(mode="after")
    def _one(self) -> Expect:
        if len(self.model_fields_set) != 1:
            raise ValueError("expect one of fires, silent, recovers")
        return self


class CaseSpec(_Strict):
    """Log lines, and what follows from them."""

    name: str = Field(min_length=1)
    log: str | None = None
    logs: dict[str, str] = Field(default_factory=dict)
    world_size: int | None = None
    expect: Expect

    @model_validator(mode="after")
    def _some_log(self) -> CaseSpec:
        if (self.log is None) == (not self.logs):
            raise ValueError("a case has `log` or `logs`")
        return self


class CaseFile(_Strict):
    """A whole file of cases."""

    cases: list[CaseSpec] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Case:
    """One case and where it stands."""

    file: str
    line: int
    spec: CaseSpec

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.spec.name}"


def read_cases(text: str, file: str) -> list[Case]:
    """Return the cases of a file; PolicyErrors names file, line and key of everything that is wrong."""
    found, document, problems = read(text, file, CaseFile)
    if found is None or document is None:
        raise PolicyErrors(problems)
    return [Case(file, _line(document, index), spec) for index, spec in enumerate(found.cases)]


def _line(document: Document, index: int) -> int:
    return document.place(("cases", index))[0]


def run_case(case: Case, kit: Kit) -> str:
    """Return what differs from the expectation, "" if nothing does."""
    spec = case.spec
    logs = spec.logs if spec.log is None else {FILE: spec.log}
    engine = Engine(kit.detectors_for, kit.causes, [], rehearse=True)
    broken = _play(engine, kit.scanner(), logs, Job(id=JOB, launcher="log", world_size=spec.world_size))
    if broken:
        return f"{case}\n" + "\n".join(f"  detector {one.detector} failed: {one.error}" for one in broken)
    incidents = engine.incidents()
    wrong = _difference(spec.expect, incidents)
    if not wrong:
        return ""
    found = [f"  found {_words(one)}" for one in incidents] or ["  found no incident"]
    return "\n".join([str(case), *(f"  {line}" for line in wrong), *found])


# ---- playing ----------------------------------------------------------------------------------------


def _play(engine: Engine, scanner: Scanner, logs: Mapping[str, str], job: Job) -> list[DetectorFailed]:
    """Feed the logs as one job, with the ticks that the engine asks for, and their end."""
    decisions = list(engine.handle(JobRegistered(now_s=0.0, job=job)))
    now_s = 0.0
    for signal in _by_time([_signals(scanner, file, text) for file, text in logs.items()]):
        if signal.t_s is not None and signal.t_s > now_s:
            for _ in range(TICKS_MAX):
                due_s = engine.next_deadline_s()
                if due_s is None or due_s >= signal.t_s or now_s == 0.0:
                    break
                now_s = max(now_s, due_s)
                decisions += engine.handle(Tick(now_s=now_s))
            now_s = signal.t_s
        decisions += engine.handle(SignalsObserved(now_s=now_s, signals=(signal,)))
    decisions += engine.handle(LogEnded(now_s=now_s, job=JOB))
    return [one for one in decisions if isinstance(one, DetectorFailed)]


def _signals(scanner: Scanner, file: str, text: str) -> list[Signal]:
    stream = scanner.open(StreamInfo(file, job=JOB))
    return [*scanner.feed(stream, text.encode()), *scanner.finish(stream)]


def _by_time(streams: Sequence[Sequence[Signal]]) -> Iterator[Signal]:
    """Merge streams by stated time; a line without one keeps its place behind the line before it."""

    def keyed(number: int, stream: Sequence[Signal]) -> Iterator[tuple[float, int, int, Signal]]:
        last = float("-inf")
        for order, signal in enumerate(stream):
            last = last if signal.t_s is None else max(last, signal.t_s)
            yield last, number, order, signal

    merged = heapq.merge(*(keyed(n, s) for n, s in enumerate(streams)), key=lambda entry: entry[:3])
    return (signal for _, _, _, signal in merged)


# ---- comparing --------------------------------------------------------------------------------------


def _difference(expect: Expect, incidents: Sequence[Incident]) -> list[str]:
    if expect.silent:
        return ["expected silence"] if incidents else []
    if expect.fires is not None:
        first = incidents[0] if incidents else None
        return _unlike(expect.fires, first)
    assert expect.recovers is not None, "the model allows no other"
    over = [one for one in incidents if one.state is IncidentState.RESOLVED and one.kind is expect.recovers.kind]
    still = [f"{one.kind} is {one.state}" for one in incidents if one.state is not IncidentState.RESOLVED]
    return [*_unlike(expect.recovers, over[0] if over else None), *still]


def _unlike(facts: Facts, incident: Incident | None) -> list[str]:
    """The named facts that the incident does not have."""
    if incident is None:
        return [f"expected an incident of kind {facts.kind}"]
    came = _came(incident)
    wanted = facts.model_dump(mode="json", exclude_unset=True)
    least = wanted.pop("confidence_at_least", 0.0)
    wrong = [f"{key}: expected {value}, came {came[key]}" for key, value in wanted.items() if not _is(key, value, came)]
    if incident.confidence < least:
        wrong.append(f"confidence: expected at least {least}, came {incident.confidence}")
    return wrong


def _is(key: str, value: Json, came: dict[str, Json]) -> bool:
    found = came[key]
    if key == "symptoms" and isinstance(value, list) and isinstance(found, list):
        return all(one in found for one in value)
    return value == found


def _came(incident: Incident) -> dict[str, Json]:
    suspects = incident.suspects
    return {
        "kind": incident.kind.value,
        "ranks": list(suspects.ranks),
        "nodes": list(suspects.nodes),
        "gpus": list(suspects.gpus),
        "links": list(suspects.links),
        "pids": list(suspects.pids),
        "symptoms": [kind.value for kind in incident.symptoms],
        "step": incident.onset_step,
        "xid": incident.xid,
        "cause_class": incident.cause_class.value,
        "restart_helps": incident.restart_helps.value,
    }


def _words(incident: Incident) -> str:
    facts = {key: value for key, value in _came(incident).items() if value not in ([], None)}
    first = incident.evidence[0] if incident.evidence else None
    line = f" from {first.file}:{first.line}: {first.text[:120]}" if first else ""
    return f"{incident.state} {facts} confidence {incident.confidence}{line}"
