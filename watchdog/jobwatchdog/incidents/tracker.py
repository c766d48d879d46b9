"""Findings → incidents: one cause, its symptoms, its suspects; late facts re-order what is still open."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from jobwatchdog.incidents.causal import CausalTable
from jobwatchdog.incidents.group import Group
from jobwatchdog.incidents.record import ALLOWED, CLOSED, InvalidTransition, JobNotes, Record
from jobwatchdog.incidents.verdict import Judge, same
from jobwatchdog.model import (
    Finding,
    Incident,
    IncidentId,
    IncidentState,
    Job,
    JobId,
    Role,
)

_S = IncidentState

INCIDENTS_MAX = 2000  # remembered a tracker; closed ones go first
SURVIVED_STEPS = 3  # after so many steps the run outlived a fault: what comes later is not its fallout
NOTES_BEFORE_S = 120.0  # how far back a cancel explains what was read before it


@dataclass(frozen=True, slots=True)
class Change:
    """A new value of an incident and why."""

    incident: Incident
    why: str


class IncidentTracker:
    """Groups the findings of all jobs. Deterministic; ids come from content and counters."""

    def __init__(self, causes: CausalTable) -> None:
        self.causes = causes
        self._records: dict[IncidentId, Record] = {}
        self._notes: dict[tuple[JobId, int], JobNotes] = {}
        self._judge = Judge(causes)
        self._newest: dict[JobId, tuple[int, int]] = {}  # attempt and its newest step
        self._order = 0

    # ---- findings -------------------------------------------------------------------------------

    def observe(self, finding: Finding, now_s: float, attempt: int, *, ending_it: bool = False) -> list[Change]:
        """Fold one finding. `ending_it`: we end the attempt right now, what it says in dying is our doing."""
        self._order += 1
        if ending_it and finding.kind in self.causes.teardown:
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

    def _home(self, finding: Finding, stated: float | None, attempt: int) -> Record | None:
        """Return the incident that a finding belongs to, newest first."""
        live = [
            r for r in self._records.values() if r.job == finding.job and r.attempt == attempt and r.state not in CLOSED
        ]
        for record in reversed(live):
            for group in record.groups.values():
                if self._related(finding, stated, group):
                    return record
        if finding.role is Role.SYMPTOM and live and self._near(live[-1], stated):
            return live[-1]
        return self._told(finding, stated, attempt)

    def _told(self, finding: Finding, stated: float | None, attempt: int) -> Record | None:
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

    def _stepped(self, record: Record) -> bool:
        attempt, _ = self._newest.get(record.job, (None, 0))
        return attempt == record.attempt

    def _outlived(self, record: Record) -> bool:
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

    def _open(self, finding: Finding, now_s: float, attempt: int) -> Record:
        first = finding.evidence[0] if finding.evidence else None
        content = [finding.job, str(attempt), finding.kind.value, finding.detector]
        content += [first.file or "", str(first.line), first.text] if first else []
        digest = hashlib.sha256("\0".join(content).encode()).hexdigest()[:10]
        identity = IncidentId(f"i-{digest}")
        twin = 2
        while identity in self._records:
            identity, twin = IncidentId(f"i-{digest}-{twin}"), twin + 1
        record = Record(identity, finding.job, attempt, now_s, self._order)
        self._records[identity] = record
        self._forget()
        return record

    def _absorb(self, record: Record, now_s: float) -> list[Change]:
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

    def _near(self, record: Record, stated: float | None) -> bool:
        last_s = record.last_s()
        return stated is None or last_s is None or abs(stated - last_s) <= self.causes.window_s

    def _is_noise(self, finding: Finding, notes: JobNotes) -> bool:
        if notes.cancelled:
            return finding.kind in self.causes.teardown
        return finding.kind in self.causes.teardown and not finding.confirmed

    # ---- notes that explain alarms away ---------------------------------------------------------

    def _benign(self, finding: Finding, now_s: float, attempt: int) -> list[Change]:
        notes = self._notes.setdefault((finding.job, attempt), JobNotes())
        changes: list[Change] = []
        if finding.summary == "cancelled":
            notes.cancelled = True
            for record in self._live(finding.job, attempt):
                if record.all_in(self.causes.teardown) and self._just_before(record, finding.onset_s):
                    changes += self._move(record, _S.IGNORED, now_s, "its user ended the job")
        elif finding.summary == "ended":
            notes.ended, notes.ended_order = True, self._order
        elif finding.summary == "running again":
            notes.ended = notes.cancelled = False
            for record in self._live(finding.job, attempt):
                if record.all_in(self.causes.survivable):
                    record.proven = True
                    changes += self._changed(record, now_s, "")
                    changes += self._move(record, _S.RESOLVED, now_s, "a later start of the job makes steps")
        elif finding.summary == "progress":
            for record in self._live(finding.job, attempt):
                survived = record.all_in(self.causes.survivable) and not record.confirmed
                if survived and record.state is _S.OPEN:
                    changes += self._move(record, _S.IGNORED, now_s, "the run went on: steps advance")
        return changes

    @staticmethod
    def _just_before(record: Record, cancelled_s: float | None) -> bool:
        first_s = record.first_s()
        return cancelled_s is None or first_s is None or cancelled_s - first_s <= NOTES_BEFORE_S

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

    def _live(self, job: JobId, attempt: int) -> list[Record]:
        return [
            r for r in list(self._records.values()) if r.job == job and r.attempt == attempt and r.state not in CLOSED
        ]

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
        closed = incident.state in CLOSED
        return (1 if closed else 0, -self.causes.weight(incident.kind))

    # ---- values ---------------------------------------------------------------------------------

    def _changed(self, record: Record, now_s: float, why: str) -> list[Change]:
        """Build the incident anew; report it when something that matters changed."""
        before = record.now
        after = self._judge.incident(record, now_s, stepped=self._stepped(record))
        if before is not None and same(before, after):
            record.now = replace(after, revision=before.revision, updated_s=before.updated_s)
            return []
        revision = 0 if before is None else before.revision + 1
        record.now = replace(after, revision=revision)
        if not why:
            moved = before is not None and before.kind is not after.kind
            why = f"cause changed from {before.kind} to {after.kind}" if moved and before else "more is known"
        record.story.append(f"{now_s:.3f} {why}")
        return [Change(record.now, why)]

    def _move(self, record: Record, state: IncidentState, now_s: float, why: str) -> list[Change]:
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
        record.now = replace(
            self._judge.incident(record, now_s, stepped=self._stepped(record)), revision=record.now.revision + 1
        )
        record.story.append(f"{now_s:.3f} {state}: {why}")
        del record.story[:-50]
        return [Change(record.now, why)]

    def _forget(self) -> None:
        if len(self._records) > INCIDENTS_MAX:
            closed = next((id for id, record in self._records.items() if record.state in CLOSED), None)
            del self._records[closed if closed is not None else next(iter(self._records))]
        for notes in (self._notes, self._newest):
            if len(notes) > INCIDENTS_MAX:
                notes.pop(next(iter(notes)))  # type: ignore[call-overload]  # each has keys of its own kind


def _first_time(finding: Finding) -> float | None:
    times = [line.t_s for line in finding.evidence if line.t_s is not None]
    return min(times) if times else None
