"""What every detector offers, and the generic one that turns matched log lines into findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from jobwatchdog.model import (
    Evidence,
    Finding,
    Job,
    JobId,
    Kind,
    LogMatch,
    Role,
    Signal,
    Suspects,
)

Thresholds = Mapping[str, float]


class Detector(Protocol):
    """Folds the signals of one job into findings. Synchronous, without I/O, clock or randomness."""

    id: str

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take one signal; return what it lets us say."""

    def tick(self, now_s: float) -> list[Finding]:
        """Time passed without a signal."""

    def next_deadline_s(self) -> float | None:
        """Return when a tick would matter, None for never."""

    def job_changed(self, job: Job) -> None:
        """Forget what no longer holds: a new attempt, a known world size."""

    def log_ended(self, now_s: float) -> list[Finding]:
        """Replay: no more lines will come."""


class BaseDetector:
    """Defaults for detectors that need no clock."""

    id = ""
    listens: ClassVar[tuple[type[Signal], ...]] = (Signal,)  # the engine passes on nothing else

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        self.job = job
        self.thresholds = dict(thresholds or {})

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Say nothing."""
        return []

    def tick(self, now_s: float) -> list[Finding]:
        """Say nothing."""
        return []

    def next_deadline_s(self) -> float | None:
        """Never wait for time."""
        return None

    def job_changed(self, job: Job) -> None:
        """Keep everything."""

    def log_ended(self, now_s: float) -> list[Finding]:
        """Say nothing."""
        return []


def evidence_of(match: LogMatch) -> Evidence:
    """Return the matched line as evidence."""
    return Evidence(text=match.text[:500], file=match.origin.file, line=match.origin.line, t_s=match.t_s)


def _int(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


def suspects_of(match: LogMatch) -> Suspects:
    """Return whom the line itself names: its captures `rank`, `node`, `gpu`, `link`, `pid`, else nobody.

    The process that printed a line is not thereby its culprit, so the origin is not used here.
    """
    named = _named(match.fields)
    return Suspects(
        nodes=named["node"],
        ranks=tuple(int(rank) for rank in named["rank"] if rank.isdigit()),
        gpus=named["gpu"],
        links=named["link"],
        pids=tuple(int(pid) for pid in named["pid"] if pid.isdigit()),
    )


def _named(fields: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """By what they name; where a pattern has several places for it they are numbered: `node`, `node2`, `node3`."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(("node", "rank", "gpu", "link", "pid"), ())
    for name, value in fields.items():
        base = name.rstrip("0123456789")
        if base in found and value and value not in found[base]:
            found[base] += (value,)
    return found


class SignatureDetector(BaseDetector):
    """Says of each matched line of its kind what the signature says."""

    kind: Kind

    def __init__(self, job: JobId, thresholds: Thresholds | None = None, kind: Kind | None = None) -> None:
        super().__init__(job, thresholds)
        if kind is not None:
            self.kind = kind
            self.id = kind.value

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Turn a match of this kind into a finding."""
        if isinstance(signal, LogMatch) and signal.kind == self.kind:
            return self.matched(signal, now_s)
        return []

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """Return the findings for one matched line; override to add state."""
        return [self.finding(match)]

    def finding(self, match: LogMatch, suspects: Suspects | None = None, role: Role | None = None) -> Finding:
        """Build the finding that the signature describes."""
        return Finding(
            kind=self.kind,
            job=self.job,
            detector=self.id,
            role=role or match.role,
            confidence=match.confidence,
            cause_class=match.cause_class,
            restart_helps=match.restart_helps,
            suspects=suspects if suspects is not None else suspects_of(match),
            evidence=(evidence_of(match),),
            onset_s=match.t_s,
            xid=_int(match.fields.get("xid")),
            reporter=match.origin.rank if match.origin.rank is not None else match.origin.local_rank,
            summary=match.signature,
        )
