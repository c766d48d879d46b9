"""One incident in the making, and the moves that it may make."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobwatchdog.incidents.group import Group
from jobwatchdog.model import Incident, IncidentId, IncidentState, JobId, Kind

_S = IncidentState
ALLOWED: frozenset[tuple[IncidentState, IncidentState]] = frozenset(
    {
        (_S.OPEN, _S.PLANNED),  # a plan starts: the cause is fixed
        (_S.OPEN, _S.RESOLVED),  # it went away, or a plan of another incident cured it
        (_S.OPEN, _S.ESCALATED),  # no plan is left: a person has it
        (_S.OPEN, _S.IGNORED),  # it was no fault: user's cancel, clean end, the run went on
        (_S.PLANNED, _S.OPEN),  # the plan failed or was dropped: back on the table
        (_S.PLANNED, _S.VERIFYING),  # the actions are done
        (_S.PLANNED, _S.RESOLVED),  # nothing to verify
        (_S.PLANNED, _S.ESCALATED),  # an action's end is not known
        (_S.PLANNED, _S.IGNORED),  # the job was cancelled under the plan
        (_S.VERIFYING, _S.RESOLVED),  # steps advance
        (_S.VERIFYING, _S.OPEN),  # they do not: next rung
        (_S.VERIFYING, _S.ESCALATED),  # they do not, and no rung is left
        (_S.VERIFYING, _S.IGNORED),  # the job was cancelled while we looked
    }
)
CLOSED = frozenset({_S.RESOLVED, _S.ESCALATED, _S.IGNORED})


class InvalidTransition(RuntimeError):  # noqa: N818 - the word of the house style
    """A state change that the table does not allow; the message has the incident's story."""


@dataclass(slots=True)
class Record:
    """One incident in the making."""

    id: IncidentId
    job: JobId
    attempt: int
    opened_s: float
    order: int
    groups: dict[Kind, Group] = field(default_factory=dict)
    fixed: Kind | None = None
    state: IncidentState = IncidentState.OPEN
    now: Incident | None = None
    story: list[str] = field(default_factory=list)
    last_order: int = 0
    told_step: int | None = None  # newest step when a person was told
    proven: bool = False  # the log ended, or a later attempt began: what was read did kill the run

    @property
    def confirmed(self) -> bool:
        """Seen in the world, not only read in a text."""
        return self.proven or any(group.confirmed for group in self.groups.values())

    def all_in(self, kinds: frozenset[Kind]) -> bool:
        """Whether nothing else was found."""
        return all(kind in kinds for kind in self.groups)

    def first_s(self) -> float | None:
        """The first time that was stated."""
        return min((g.first_s for g in self.groups.values() if g.first_s is not None), default=None)

    def last_s(self) -> float | None:
        """The last time that was stated."""
        return max((g.last_s for g in self.groups.values() if g.last_s is not None), default=None)


@dataclass(slots=True)
class JobNotes:
    """What is known of a job's end: it turns later alarms into noise."""

    cancelled: bool = False
    ended: bool = False
    ended_order: int = 0
