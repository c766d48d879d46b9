"""What a record amounts to: the cause among its kinds, the suspects, how sure, whether a restart helps."""

from __future__ import annotations

from collections.abc import Iterable

from jobwatchdog.incidents.causal import CausalTable
from jobwatchdog.incidents.group import Group
from jobwatchdog.incidents.record import Record
from jobwatchdog.model import KIND_DEFAULTS, CauseClass, Incident, JobId, Kind, RestartHelps, Role, Suspects

EVIDENCE_MAX = 20
TEXT_ONLY_CONFIDENCE_MAX = 0.65  # read in a text, and the run may live on
FAILURES_MAX = 10_000  # remembered with their steps
BEFORE_THE_FIRST = -1  # no step was made


class Judge:
    """Builds incidents; remembers at which step what struck, to know it again in a later attempt."""

    def __init__(self, causes: CausalTable) -> None:
        self.causes = causes
        self._failed_at: dict[tuple[JobId, Kind, int], int] = {}  # → attempt

    def incident(self, record: Record, now_s: float, *, stepped: bool) -> Incident:
        """Return the whole incident as it stands; `stepped`: its attempt has made a step."""
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
        first_s = record.first_s()
        return Incident(
            id=record.id,
            job=record.job,
            attempt=record.attempt,
            kind=kind,
            cause_class=group.cause_class or defaults.cause_class,
            restart_helps=self._helps(record, group, stepped=stepped),
            confidence=self._confidence(record, group),
            suspects=suspects,
            state=record.state,
            symptoms=tuple(sorted(other.kind for other in others)),
            evidence=tuple(evidence[:EVIDENCE_MAX]),
            opened_s=record.opened_s,
            updated_s=now_s,
            first_seen_s=first_s,
            onset_s=group.onset_s if group.onset_s is not None else first_s,
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

    def _confidence(self, record: Record, group: Group) -> float:
        sure = group.confidence
        doubtful = group.kind in self.causes.survivable and not record.confirmed
        return round(min(sure, TEXT_ONLY_CONFIDENCE_MAX) if doubtful else sure, 3)

    def _helps(self, record: Record, group: Group, *, stepped: bool) -> RestartHelps:
        """Evidence first. What strikes at the same step of a second attempt, or twice before the first step, is
        deterministic, whatever it looked like; only what the machines' surroundings do may pass by itself."""
        defaults = KIND_DEFAULTS[group.kind]
        step = BEFORE_THE_FIRST if group.onset_step is None and not stepped else group.onset_step
        passing = (group.cause_class or defaults.cause_class) is CauseClass.INFRASTRUCTURE
        if step is not None and not passing:
            key = (record.job, group.kind, step)
            if self._failed_at.setdefault(key, record.attempt) != record.attempt:
                return RestartHelps.NO
            if len(self._failed_at) > FAILURES_MAX:
                del self._failed_at[next(iter(self._failed_at))]
        return group.restart_helps or defaults.restart_helps


def _onset_step(group: Group, others: Iterable[Group]) -> int | None:
    if group.onset_step is not None:
        return group.onset_step
    steps = [other.onset_step for other in others if other.onset_step is not None]
    return min(steps) if steps else None


def same(a: Incident, b: Incident) -> bool:
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
