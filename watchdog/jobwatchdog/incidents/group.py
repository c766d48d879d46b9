"""Findings of one kind within one incident, folded."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobwatchdog.model import NOBODY, CauseClass, Evidence, Finding, Kind, RestartHelps, Role, Suspects

EVIDENCE_MAX = 12  # lines kept of one kind: the first ones, and the last
SUSPECTS_MAX = 64


@dataclass(slots=True)
class Group:
    """What is known of one kind; `order` counts findings of the tracker, to tell first from later."""

    kind: Kind
    order: int
    first_s: float | None = None
    last_s: float | None = None
    count: int = 0
    confidence: float = 0.0
    role: Role = Role.SYMPTOM
    confirmed: bool = False
    cause_class: CauseClass | None = None
    restart_helps: RestartHelps | None = None
    whole_view: dict[str, Suspects] = field(default_factory=dict)
    named: Suspects = NOBODY
    evidence: list[Evidence] = field(default_factory=list)
    onset_s: float | None = None
    onset_step: int | None = None
    xid: int | None = None
    measures: dict[str, float] = field(default_factory=dict)
    reporters: set[int] = field(default_factory=set)  # two are as good as many: it is no single rank's fault
    summary: str = ""

    def fold(self, finding: Finding, stated_s: float | None) -> None:
        """Take one finding."""
        self.count += 1
        if finding.confidence > self.confidence:
            self.confidence = finding.confidence
            self.cause_class = finding.cause_class or self.cause_class
            self.summary = finding.summary or self.summary
        if finding.restart_helps is not None and (self.restart_helps is None or finding.replaces):
            self.restart_helps = finding.restart_helps
        if finding.role is Role.CAUSE:
            self.role = Role.CAUSE
        self.confirmed |= finding.confirmed
        if finding.reporter is not None and len(self.reporters) < 2:
            self.reporters.add(finding.reporter)
        self._times(finding, stated_s)
        self._suspects(finding)
        self.measures.update(finding.measures)
        if self.xid is None:
            self.xid = finding.xid
        for one in finding.evidence:
            if one not in self.evidence:
                if len(self.evidence) >= EVIDENCE_MAX:
                    self.evidence.pop()
                self.evidence.append(one)

    def _times(self, finding: Finding, stated_s: float | None) -> None:
        if stated_s is not None:
            self.first_s = stated_s if self.first_s is None else min(self.first_s, stated_s)
            self.last_s = stated_s if self.last_s is None else max(self.last_s, stated_s)
        if finding.onset_s is not None:
            self.onset_s = finding.onset_s if self.onset_s is None else min(self.onset_s, finding.onset_s)
        if finding.onset_step is not None:
            step = finding.onset_step
            self.onset_step = step if self.onset_step is None else min(self.onset_step, step)

    def _suspects(self, finding: Finding) -> None:
        if finding.replaces:
            self.whole_view[finding.detector] = finding.suspects
        elif len(self.named.ranks) + len(self.named.pids) + len(self.named.gpus) < SUSPECTS_MAX:
            self.named = self.named.merged(finding.suspects)

    @property
    def suspects(self) -> Suspects:
        """A detector's whole view goes before what single lines name."""
        found = NOBODY
        for name in sorted(self.whole_view):
            found = found.merged(self.whole_view[name])
        return found or self.named
