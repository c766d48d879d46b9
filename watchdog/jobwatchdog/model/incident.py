"""Findings and incidents: what detectors say, and what belongs together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from jobwatchdog.model.kinds import CauseClass, Kind, RestartHelps
from jobwatchdog.model.signal import JobId, Role

IncidentId = NewType("IncidentId", str)


@dataclass(frozen=True, slots=True)
class Suspects:
    """Who is to blame, each list sorted and without repeats; all empty = unknown, which is an answer."""

    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.ranks or self.gpus or self.links or self.pids)

    def merged(self, other: Suspects) -> Suspects:
        """Union with another, sorted."""
        return Suspects(
            tuple(sorted({*self.nodes, *other.nodes})),
            tuple(sorted({*self.ranks, *other.ranks})),
            tuple(sorted({*self.gpus, *other.gpus})),
            tuple(sorted({*self.links, *other.links})),
            tuple(sorted({*self.pids, *other.pids})),
        )


NOBODY = Suspects()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line or measurement that supports a finding."""

    text: str
    file: str | None = None
    line: int | None = None
    t_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one detector says: a kind, about whom, how sure, and why.

    `onset_s`/`onset_step` are the first moment and step of the fault itself (not of its discovery): a
    checkpoint made later is not good. `measures` are the numbers policies may use
    (`clock_ratio`, `duration_s`, `temp_c`, ...). `recovered` closes what an earlier finding of the same
    detector and job opened.
    """

    kind: Kind
    job: JobId
    detector: str
    role: Role = Role.CAUSE
    confidence: float = 0.9
    cause_class: CauseClass | None = None
    restart_helps: RestartHelps | None = None
    suspects: Suspects = NOBODY
    evidence: tuple[Evidence, ...] = ()
    onset_s: float | None = None
    onset_step: int | None = None
    xid: int | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    recovered: bool = False
    replaces: bool = False  # the suspects are the detector's whole view: earlier ones of its are withdrawn
    confirmed: bool = False  # seen in the world (a dead process, a stuck job), not only read in a text
    reporter: int | None = None  # the rank whose output says so; no suspect for that alone
    summary: str = ""


class IncidentState(StrEnum):
    """Where an incident stands; the allowed moves are a table in `incidents`."""

    OPEN = "open"  # may still change its cause
    PLANNED = "planned"  # a plan has started: cause is fixed
    VERIFYING = "verifying"  # actions done, waiting for steps to advance
    RESOLVED = "resolved"
    ESCALATED = "escalated"  # a person was called; no more acting
    IGNORED = "ignored"  # turned out benign (user cancel, clean end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings that belong together: one cause, its symptoms, its suspects. Immutable; each change is a new value."""

    id: IncidentId
    job: JobId
    attempt: int
    kind: Kind
    cause_class: CauseClass
    restart_helps: RestartHelps
    confidence: float
    suspects: Suspects
    state: IncidentState = IncidentState.OPEN
    symptoms: tuple[Kind, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    opened_s: float = 0.0  # engine time of the first finding
    updated_s: float = 0.0
    first_seen_s: float | None = None  # time stated by the evidence, None where it states none
    onset_s: float | None = None
    onset_step: int | None = None
    xid: int | None = None
    count: int = 1  # findings folded in
    revision: int = 0  # rises with every change of kind, suspects or state
    measures: Mapping[str, float] = field(default_factory=dict)
    summary: str = ""
