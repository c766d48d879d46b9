"""Past logs through the same engine: what broke, who, and what a policy would have done."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobwatchdog import bundled, plugins
from jobwatchdog.engine import Engine
from jobwatchdog.incidents import CausalTable
from jobwatchdog.model import (
    Decision,
    DetectorFailed,
    Evidence,
    Incident,
    IncidentId,
    Job,
    JobId,
    JobRegistered,
    Json,
    LogEnded,
    PlanMade,
    PlanRefused,
    Signal,
    SignalsObserved,
    Tick,
)
from jobwatchdog.policy.model import Policy
from jobwatchdog.signals.scanner import Scanner
from jobwatchdog.sources.files import LogFile, Skipped, open_paths
from jobwatchdog.sources.patterns import load_scanner, read_catalogues

JOB = JobId("replay")
TICKS_MAX = 1000  # inserted between two events; a detector that wants more is not served
SIGNALS_A_BATCH = 512


@dataclass(slots=True)
class ReplayResult:
    """What a replay found; `as_json` is the stable form."""

    incidents: list[Incident] = field(default_factory=list)
    plans: dict[IncidentId, list[PlanMade]] = field(default_factory=dict)
    refusals: dict[IncidentId, list[PlanRefused]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    failed_detectors: list[DetectorFailed] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    n_bytes: int = 0
    cut_lines: int = 0
    repeats: int = 0
    wall_s: float = 0.0
    last_s: float | None = None

    def as_json(self) -> dict[str, Json]:
        """Return plain JSON, version 1 of the layout in docs/replay.md."""
        return {
            "version": 1,
            "incidents": list(self.incidents_json()),
            "skipped": [{"path": s.path, "reason": s.reason} for s in self.skipped],
            "stats": {
                "files": self.files,
                "lines": self.lines,
                "bytes": self.n_bytes,
                "cut_lines": self.cut_lines,
                "repeats_left_out": self.repeats,
                "wall_s": round(self.wall_s, 3),
            },
            "detectors_left_out": [{"detector": f.detector, "error": f.error} for f in self.failed_detectors],
        }

    def incidents_json(self) -> list[dict[str, Json]]:
        """Return the incidents as plain JSON, the one to look at first in front."""
        return [self._incident(incident) for incident in self.incidents]

    def _incident(self, incident: Incident) -> dict[str, Json]:
        first = incident.evidence[0] if incident.evidence else Evidence("")
        suspects = incident.suspects
        return {
            "id": str(incident.id),
            "kind": incident.kind.value,
            "cause_class": incident.cause_class.value,
            "confidence": incident.confidence,
            "restart_helps": incident.restart_helps.value,
            "xid": incident.xid,
            "suspects": {
                "nodes": list(suspects.nodes),
                "ranks": list(suspects.ranks),
                "gpus": list(suspects.gpus),
                "links": list(suspects.links),
                "pids": list(suspects.pids),
            },
            "first_seen": utc(incident.first_seen_s),
            "onset_step": incident.onset_step,
            "file": first.file,
            "line": first.line,
            "state": incident.state.value,
            "count": incident.count,
            "summary": incident.summary,
            "measures": {name: _finite(value) for name, value in sorted(incident.measures.items())},
            "symptoms": [kind.value for kind in incident.symptoms],
            "evidence": [{"file": e.file, "line": e.line, "text": e.text} for e in incident.evidence],
            "decisions": [_decision(made) for made in self.plans.get(incident.id, [])],
            "not_done": [_refusal(refused) for refused in self.refusals.get(incident.id, [])],
        }


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def _decision(made: PlanMade) -> Json:
    plan = made.plan
    return {
        "policy": plan.policy,
        "rule": plan.rule,
        "rung": plan.rung,
        "mode": plan.mode.value,
        "actions": [action.verb.value for action in plan.actions],
        "arguments": [dict(action.args) for action in plan.actions],
        "checks": [{"name": c.name, "passed": c.passed, "because": c.because} for c in made.checks],
    }


def _refusal(refused: PlanRefused) -> Json:
    failed = [check for check in refused.checks if not check.passed]
    return {"policy": refused.policy, "because": [{"name": c.name, "because": c.because} for c in failed]}


def utc(time_s: float | None) -> str | None:
    """Return a time as RFC 3339 in UTC, to the second."""
    if time_s is None:
        return None
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
    except (ValueError, OverflowError, OSError):
        return None


class Replayer:
    """Feeds files through scanner and engine. Memory does not grow with the size of the logs."""

    def __init__(self, scanner: Scanner, policies: Sequence[Policy]) -> None:
        self.scanner = scanner
        self.engine = Engine(
            plugins.detectors_for(),
            CausalTable.parse(bundled.causal_table_text()),
            policies,
            rehearse=True,
        )
        self.result = ReplayResult(policies=[policy.name for policy in policies])
        self._now_s = 0.0

    def run(self, files: Sequence[LogFile], on_progress: Callable[[int], None] | None = None) -> ReplayResult:
        """Replay the files as one job: by stated time where several files state times, else one after the other."""
        begun = time.perf_counter()
        self._handle(self.engine.handle(JobRegistered(now_s=self._now_s, job=Job(id=JOB, launcher="log"))))
        streams = [self._signals(file, on_progress) for file in files]
        batch: list[Signal] = []
        for signal in _by_time(streams):
            if signal.t_s is not None and signal.t_s > self._now_s:
                self._observe(batch)
                batch = []
                self._advance(signal.t_s)
            batch.append(signal)
            if len(batch) >= SIGNALS_A_BATCH:
                self._observe(batch)
                batch = []
        self._observe(batch)
        self._handle(self.engine.handle(LogEnded(now_s=self._now_s, job=JOB)))
        return self._finish(files, time.perf_counter() - begun)

    def _signals(self, file: LogFile, on_progress: Callable[[int], None] | None) -> Iterator[Signal]:
        stream = self.scanner.open(file.info)
        for block in file.blocks(on_progress):
            yield from self.scanner.feed(stream, block)
        yield from self.scanner.finish(stream)

    def _observe(self, batch: list[Signal]) -> None:
        if batch:
            self._handle(self.engine.handle(SignalsObserved(now_s=self._now_s, signals=tuple(batch))))

    def _advance(self, to_s: float) -> None:
        """Let the engine's own deadlines fall due on the way to the next stated time."""
        for _ in range(TICKS_MAX):
            due = self.engine.next_deadline_s()
            if due is None or due >= to_s or self._now_s == 0.0:
                break
            self._now_s = max(self._now_s, due)
            self._handle(self.engine.handle(Tick(now_s=self._now_s)))
        self._now_s = to_s

    def _handle(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, PlanMade):
                self.result.plans.setdefault(decision.plan.incident, []).append(decision)
            elif isinstance(decision, PlanRefused):
                self.result.refusals.setdefault(decision.incident, []).append(decision)
            elif isinstance(decision, DetectorFailed):
                self.result.failed_detectors.append(decision)

    def _finish(self, files: Sequence[LogFile], wall_s: float) -> ReplayResult:
        result, stats = self.result, self.scanner.stats
        result.incidents = self.engine.incidents()
        result.skipped += [trouble for file in files for trouble in file.trouble]
        result.files = len(files)
        result.lines, result.n_bytes = stats.lines, stats.n_bytes
        result.cut_lines, result.repeats = stats.cut_lines, stats.repeats
        result.wall_s = wall_s
        result.last_s = self._now_s or None
        return result


def _by_time(streams: Sequence[Iterator[Signal]]) -> Iterator[Signal]:
    """Merge streams by time; lines without one keep their place after the line before them."""
    if len(streams) == 1:
        yield from streams[0]
        return

    def keyed(number: int, stream: Iterator[Signal]) -> Iterator[tuple[float, int, int, Signal]]:
        last = float("-inf")
        for order, signal in enumerate(stream):
            last = max(last, signal.t_s) if signal.t_s is not None else last
            yield last, number, order, signal

    for _, _, _, signal in heapq.merge(*(keyed(n, s) for n, s in enumerate(streams)), key=lambda entry: entry[:3]):
        yield signal


def replay(
    paths: Sequence[Path | str],
    policies: Sequence[Policy],
    catalogues: Sequence[Path] = (),
    on_start: Callable[[list[LogFile]], Callable[[int], None] | None] | None = None,
) -> ReplayResult:
    """Replay logs; CatalogueError for a bad catalogue, everything wrong with a log is in `skipped`."""
    site = [*plugins.installed().registry.catalogues, *read_catalogues(catalogues)]
    scanner = load_scanner(site, bundled.signature_texts())
    files, skipped = open_paths(paths, JOB)
    replayer = Replayer(scanner, policies)
    replayer.result.skipped += skipped
    return replayer.run(files, on_start(files) if on_start is not None else None)
