"""Findings → incidents: one cause, its symptoms, its suspects; late facts re-order what is still open."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from jobwatchdog.incidents.causal import CausalTable
from jobwatchdog.incidents.group import Group
from jobwatchdog.model import (
    KIND_DEFAULTS,
    Finding,
    Incident,
    IncidentId,
    IncidentState,
    Job,
    JobId,
    Kind,
    RestartHelps,
    Role,
    Suspects,
)

INCIDENTS_MAX = 2000  # remembered a tracker; closed ones go first
EVIDENCE_MAX = 20
TEXT_ONLY_CONFIDENCE_MAX = 0.65  # read in a text, and the run may live on
SURVIVED_STEPS = 3  # after so many steps the run outlived a fault: what comes later is not its fallout
NOTES_BEFORE_S = 120.0  # how far back a cancel explains what was read before it

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
_CLOSED = frozenset({_S.RESOLVED, _S.ESCALATED, _S.IGNORED})


class InvalidTransition(RuntimeError):  # noqa: N818 - the word of the house style
    """A state change that the table does not allow; the message has the incident's story."""


@dataclass(frozen=True, slots=True)
class Change:
    """A new value of an incident and why."""

    incident: Incident
    why: str


@dataclass(slots=True)
class _Record:
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


@dataclass(slots=True)
class _JobNotes:
    """What is known of a job's end: it turns later alarms into noise."""

    cancelled: bool = False
    ended: bool = False
    ended_order: int = 0


class IncidentTracker:
    """Groups the findings of all jobs. Deterministic; ids come from content and counters."""

    def __init__(self, causes: CausalTable) -> None:
        self.causes = causes
        self._records: dict[IncidentId, _Record] = {}
        self._notes: dict[tuple[JobId, int], _JobNotes] = {}
        self._failed_at: dict[tuple[JobId, Kind, int], int] = {}  # step at which a kind struck → attempt
        self._newest: dict[JobId, tuple[int, int]] = {}  # attempt and its newest step
        self._order = 0

    # ---- findings -------------------------------------------------------------------------------

    def observe(self, finding: Finding, now_s: float, attempt: int, *, ending_it: bool = False) -> list[Change]:
        """Fold one finding. `ending_it`: we end the attempt right now, what it says in dying is our doing."""
        self._order += 1
        if ending_it and finding.role is not Role.BENIGN and finding.kind in self.causes.teardown:
            return []
        if finding.role is Role.BENIGN:
            return self._benign(finding, now_s, attempt)
        if finding.recovered:
            return self._recovered(finding, now_s, attempt)
        notes = self._notes.get((finding.job, attempt))
        if notes is not None and (notes.cancelled or notes.ended) and self._is_noise(finding, notes):
            return []
        stated = finding.onset_s if finding.onset_s is not None else _first_time(finding)
        record = self._home(finding, stated, attempt)
        opened = record is None
        if record is None:
            record = self._open(finding, now_s, attempt)
        group = record.groups.setdefault(finding.kind, Group(finding.kind, self._order))
        group.fold(finding, stated)
        record.last_order = self._order
        changes = self._absorb(record, now_s) if not opened else []
        return changes + self._changed(record, now_s, "opened" if opened else "")

    def _home(self, finding: Finding, stated: float | None, attempt: int) -> _Record | None:
        """Return the incident that a finding belongs to, newest first."""
        live = [
            r
            for r in self._records.values()
            if r.job == finding.job and r.attempt == attempt and r.state not in _CLOSED
        ]
        for record in reversed(live):
            for group in record.groups.values():
                if self._related(finding, stated, group):
                    return record
        if finding.role is Role.SYMPTOM and live and _near(stated, live[-1], self.causes.window_s):
            return live[-1]
        return self._told(finding, stated, attempt)

    def _told(self, finding: Finding, stated: float | None, attempt: int) -> _Record | None:
        """Return the incident of which a person was told and of which this is the fallout: the dying of the run that
        the fault ends is no fault of its own. Only what has happened since the run last made steps counts."""
        for record in reversed(self._records.values()):
            if (record.job, record.attempt, record.state) != (finding.job, attempt, _S.ESCALATED):
                continue
            if self._outlived(record):
                continue
            for group in record.groups.values():
                if finding.kind is group.kind or self.causes.reaches(group.kind, group.first_s, finding.kind, stated):
                    return record
        return None

    def _outlived(self, record: _Record) -> bool:
        attempt, step = self._newest.get(record.job, (record.attempt, None))
        if step is None:
            return False
        return attempt != record.attempt or record.told_step is None or step - record.told_step >= SURVIVED_STEPS

    def _related(self, finding: Finding, stated: float | None, group: Group) -> bool:
        if finding.kind is group.kind:
            if stated is None or group.last_s is None:
                return True
            return abs(stated - group.last_s) <= self.causes.window_s
        return self.causes.reaches(group.kind, group.first_s, finding.kind, stated) or self.causes.reaches(
            finding.kind, stated, group.kind, group.first_s
        )

    def _open(self, finding: Finding, now_s: float, attempt: int) -> _Record:
        first = finding.evidence[0] if finding.evidence else None
        content = [finding.job, str(attempt), finding.kind.value, finding.detector]
        content += [first.file or "", str(first.line), first.text] if first else []
        digest = hashlib.sha256("\0".join(content).encode()).hexdigest()[:10]
        identity = IncidentId(f"i-{digest}")
        twin = 2
        while identity in self._records:
            identity, twin = IncidentId(f"i-{digest}-{twin}"), twin + 1
        record = _Record(identity, finding.job, attempt, now_s, self._order)
        self._records[identity] = record
        self._forget()
        return record

    def _absorb(self, record: _Record, now_s: float) -> list[Change]:
        """A late cause may tie together incidents that looked independent."""
        if record.state is not _S.OPEN:
            return []
        changes: list[Change] = []
        newest = max(record.groups.values(), key=lambda g: g.order)
        for other in list(self._records.values()):
            if (
                other is record
                or other.state is not _S.OPEN
                or (other.job, other.attempt) != (record.job, record.attempt)
            ):
                continue
            if any(self.causes.reaches(newest.kind, newest.first_s, g.kind, g.first_s) for g in other.groups.values()):
                for kind, group in other.groups.items():
                    record.groups.setdefault(kind, group)
                record.opened_s = min(record.opened_s, other.opened_s)
                changes += self._move(other, _S.IGNORED, now_s, f"is a symptom of {record.id}")
        return changes

    def _is_noise(self, finding: Finding, notes: _JobNotes) -> bool:
        if notes.cancelled:
            return finding.kind in self.causes.teardown
        return finding.kind in self.causes.teardown and not finding.confirmed

    # ---- notes that explain alarms away ---------------------------------------------------------

    def _benign(self, finding: Finding, now_s: float, attempt: int) -> list[Change]:
        notes = self._notes.setdefault((finding.job, attempt), _JobNotes())
        changes: list[Change] = []
        if finding.summary == "cancelled":
            notes.cancelled = True
            for record in self._live(finding.job, attempt):
                if self._all_in(record, self.causes.teardown) and _just_before(record, finding.onset_s):
                    changes += self._move(record, _S.IGNORED, now_s, "its user ended the job")
        elif finding.summary == "ended":
            notes.ended, notes.ended_order = True, self._order
        elif finding.summary == "running again":
            notes.ended = notes.cancelled = False
            for record in self._live(finding.job, attempt):
                if self._all_in(record, self.causes.survivable):
                    record.proven = True
                    changes += self._changed(record, now_s, "")
                    changes += self._move(record, _S.RESOLVED, now_s, "a later start of the job makes steps")
        elif finding.summary == "progress":
            for record in self._live(finding.job, attempt):
                survived = self._all_in(record, self.causes.survivable) and not self._confirmed(record)
                if survived and record.state is _S.OPEN:
                    changes += self._move(record, _S.IGNORED, now_s, "the run went on: steps advance")
        return changes

    def _recovered(self, finding: Finding, now_s: float, attempt: int) -> list[Change]:
        changes: list[Change] = []
        for record in self._live(finding.job, attempt):
            if record.state is _S.OPEN and set(record.groups) == {finding.kind}:
                group = record.groups[finding.kind]
                group.restart_helps = finding.restart_helps or group.restart_helps
                group.measures.update(finding.measures)
                changes += self._changed(record, now_s, "")
                changes += self._move(record, _S.RESOLVED, now_s, finding.summary or "recovered by itself")
        return changes

    def _live(self, job: JobId, attempt: int) -> list[_Record]:
        return [
            r for r in list(self._records.values()) if r.job == job and r.attempt == attempt and r.state not in _CLOSED
        ]

    @staticmethod
    def _all_in(record: _Record, kinds: frozenset[Kind]) -> bool:
        return all(kind in kinds for kind in record.groups)

    @staticmethod
    def _confirmed(record: _Record) -> bool:
        return record.proven or any(group.confirmed for group in record.groups.values())

    # ---- the engine's side ----------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Change]:
        """Nothing waits for time here."""
        return []

    def next_deadline_s(self) -> float | None:
        """Never."""
        return None

    def set_state(self, id: IncidentId, state: IncidentState, now_s: float, why: str) -> list[Change]:
        """Move one incident; unknown ids (forgotten, or of an earlier life) change nothing."""
        record = self._records.get(id)
        if record is None or record.state is state:
            return []
        if state is _S.OPEN:
            record.fixed = None
        return self._move(record, state, now_s, why)

    def fix_cause(self, id: IncidentId, now_s: float) -> list[Change]:
        """A plan starts: later facts add symptoms, and do not change the cause."""
        record = self._records.get(id)
        if record is not None and record.now is not None:
            record.fixed = record.now.kind
        return []

    def stepped(self, job: JobId, attempt: int, step: int) -> None:
        """Note the newest step of an attempt."""
        self._newest[job] = (attempt, step)

    def job_changed(self, job: Job, now_s: float) -> list[Change]:
        """Nothing to forget: incidents carry their attempt."""
        return []

    def log_ended(self, now_s: float) -> list[Change]:
        """No more lines: the run did not survive what was read last."""
        changes: list[Change] = []
        for record in list(self._records.values()):
            if record.state is _S.OPEN and not record.proven:
                record.proven = True
                changes += self._changed(record, now_s, "")
        return changes

    def ranked(self) -> list[Incident]:
        """Return all that are no noise, the one to look at first in front."""
        found = [r.now for r in self._records.values() if r.now is not None and r.state is not _S.IGNORED]
        orders = {r.id: r.order for r in self._records.values()}
        return sorted(found, key=lambda i: (self._severity(i), orders[i.id]))

    def _severity(self, incident: Incident) -> tuple[int, int]:
        closed = incident.state in _CLOSED
        return (1 if closed else 0, -self.causes.weight(incident.kind))

    # ---- values ---------------------------------------------------------------------------------

    def _changed(self, record: _Record, now_s: float, why: str) -> list[Change]:
        """Build the incident anew; report it when something that matters changed."""
        before = record.now
        after = self._build(record, now_s)
        if before is not None and _same(before, after):
            record.now = replace(after, revision=before.revision, updated_s=before.updated_s)
            return []
        revision = 0 if before is None else before.revision + 1
        record.now = replace(after, revision=revision)
        if not why:
            moved = before is not None and before.kind is not after.kind
            why = f"cause changed from {before.kind} to {after.kind}" if moved and before else "more is known"
        record.story.append(f"{now_s:.3f} {why}")
        return [Change(record.now, why)]

    def _move(self, record: _Record, state: IncidentState, now_s: float, why: str) -> list[Change]:
        if (record.state, state) not in ALLOWED:
            story = "\n".join(f"  {line}" for line in record.story[-20:])
            raise InvalidTransition(
                f"incident {record.id} cannot go from {record.state} to {state} ({why}); so far:\n{story}"
            )
        record.state = state
        if state is _S.ESCALATED:
            attempt, step = self._newest.get(record.job, (record.attempt, None))
            record.told_step = step if attempt == record.attempt else None
        assert record.now is not None, "an incident has a value before it moves"
        record.now = replace(self._build(record, now_s), revision=record.now.revision + 1)
        record.story.append(f"{now_s:.3f} {state}: {why}")
        del record.story[:-50]
        return [Change(record.now, why)]

    def _build(self, record: _Record, now_s: float) -> Incident:
        kind = record.fixed or self._cause(record.groups)
        group = record.groups[kind]
        others = sorted((g for g in record.groups.values() if g is not group), key=lambda g: g.order)
        suspects = group.suspects
        for other in sorted(others, key=lambda g: (-self.causes.weight(g.kind), g.order)):
            suspects = suspects or other.suspects
        if not suspects and kind in self.causes.own_fault and len(group.reporters) == 1:
            suspects = Suspects(ranks=tuple(group.reporters))
        defaults = KIND_DEFAULTS[kind]
        lines = [*group.evidence, *(line for other in others for line in other.evidence[:4])]
        evidence = list(dict.fromkeys(lines))  # one line may speak for two kinds
        times = [g.first_s for g in record.groups.values() if g.first_s is not None]
        return Incident(
            id=record.id,
            job=record.job,
            attempt=record.attempt,
            kind=kind,
            cause_class=group.cause_class or defaults.cause_class,
            restart_helps=self._helps(record, group, defaults.restart_helps),
            confidence=self._confidence(record, group),
            suspects=suspects,
            state=record.state,
            symptoms=tuple(sorted(other.kind for other in others)),
            evidence=tuple(evidence[:EVIDENCE_MAX]),
            opened_s=record.opened_s,
            updated_s=now_s,
            first_seen_s=min(times) if times else None,
            onset_s=group.onset_s if group.onset_s is not None else (min(times) if times else None),
            onset_step=_onset_step(group, others),
            xid=group.xid,
            count=sum(g.count for g in record.groups.values()),
            measures=dict(group.measures),
            summary=group.summary,
        )

    def _cause(self, groups: dict[Kind, Group]) -> Kind:
        """Return the kind that no other explains; among several the heaviest, then the first."""
        free = [g for g in groups.values() if not any(self._explains(o, g) for o in groups.values() if o is not g)]
        best = min(
            free or groups.values(), key=lambda g: (g.role is not Role.CAUSE, -self.causes.weight(g.kind), g.order)
        )
        return best.kind

    def _explains(self, cause: Group, effect: Group) -> bool:
        if cause.role is not Role.CAUSE and effect.role is Role.CAUSE:
            return False
        return self.causes.reaches(cause.kind, cause.first_s, effect.kind, effect.first_s)

    def _confidence(self, record: _Record, group: Group) -> float:
        sure = group.confidence
        doubtful = group.kind in self.causes.survivable and not self._confirmed(record)
        return round(min(sure, TEXT_ONLY_CONFIDENCE_MAX) if doubtful else sure, 3)

    def _helps(self, record: _Record, group: Group, default: RestartHelps) -> RestartHelps:
        """Evidence first; the same fault at the same step of an earlier attempt makes it deterministic."""
        if group.onset_step is not None:
            key = (record.job, group.kind, group.onset_step)
            if self._failed_at.setdefault(key, record.attempt) != record.attempt:
                return RestartHelps.NO
        return group.restart_helps or default

    def _forget(self) -> None:
        if len(self._records) > INCIDENTS_MAX:
            closed = next((id for id, record in self._records.items() if record.state in _CLOSED), None)
            del self._records[closed if closed is not None else next(iter(self._records))]


def _onset_step(group: Group, others: Iterable[Group]) -> int | None:
    if group.onset_step is not None:
        return group.onset_step
    steps = [other.onset_step for other in others if other.onset_step is not None]
    return min(steps) if steps else None


def _first_time(finding: Finding) -> float | None:
    times = [line.t_s for line in finding.evidence if line.t_s is not None]
    return min(times) if times else None


def _near(stated: float | None, record: _Record, window_s: float) -> bool:
    last = [g.last_s for g in record.groups.values() if g.last_s is not None]
    return stated is None or not last or abs(stated - max(last)) <= window_s


def _just_before(record: _Record, cancelled_s: float | None) -> bool:
    first = [g.first_s for g in record.groups.values() if g.first_s is not None]
    return cancelled_s is None or not first or cancelled_s - min(first) <= NOTES_BEFORE_S


def _same(a: Incident, b: Incident) -> bool:
    """Whether nothing that a reader or a policy would act on differs."""
    return (
        a.kind is b.kind
        and a.suspects == b.suspects
        and a.symptoms == b.symptoms
        and a.restart_helps is b.restart_helps
        and a.confidence == b.confidence
        and a.state is b.state
        and a.onset_step == b.onset_step
        and dict(a.measures) == dict(b.measures)
    )
