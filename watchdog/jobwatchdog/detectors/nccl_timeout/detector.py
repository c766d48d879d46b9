"""A collective of NCCL or gloo did not finish in time on one or more ranks.

What it sees
------------
Watchdog and heartbeat-monitor lines of PyTorch 1.x to 2.15, gloo time-outs, desync and flight-recorder reports. The reports of all
ranks become one finding; the suspect is the rank that is behind: lowest sequence number, missing from the reports when the
world is known, or fewest works queued.

Why it matters
--------------
All ranks wait until the time-out of 10 to 30 minutes has passed, and each then prints a page: 512 ranks shout, one is at fault.

Looks like it but is not
------------------------
Warnings that name the time-out setting. `[Rank N]` in brackets counts within its process group; the `[rankM]:` prefix is the
global rank.

By hand
-------
grep -c "Watchdog caught" LOG; compare `last enqueued` over the ranks: the smallest is behind.

Sources
-------
PyTorch ProcessGroupNCCL.cpp format strings 1.13 to 2.15; gloo transport sources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import NOBODY, Finding, Job, JobId, Kind, LogMatch, RestartHelps, Suspects

_GROUP_RANK = re.compile(r"\[Rank (\d+)\]|\bRank (\d+)\]")
_RANKS_MAX = 100_000


@dataclass(slots=True)
class _Rank:
    """How far one rank had come, by its own reports."""

    first_seq: int | None = None
    enqueued: int | None = None
    queued: int | None = None
    stuck: bool = False
    collective: bool = False
    ops: set[str] = field(default_factory=set)


class NcclTimeoutDetector(SignatureDetector):
    """Keeps every rank's report and names the one that is behind."""

    kind = Kind.NCCL_TIMEOUT
    id = "nccl_timeout"

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._ranks: dict[int, _Rank] = {}
        self._missing: set[int] = set()
        self._world: int | None = None
        self._attempt = 0

    def job_changed(self, job: Job) -> None:
        """A new attempt starts from nothing; the world's size tells who is missing."""
        self._world = job.world_size
        if job.attempt != self._attempt:
            self._attempt = job.attempt
            self._ranks.clear()
            self._missing.clear()

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """Note the report, say anew who is behind."""
        self._note(match)
        finding = self.finding(match, suspects=self._behind())
        return [replace(finding, replaces=True, restart_helps=self._helps() or finding.restart_helps)]

    def _note(self, match: LogMatch) -> None:
        fields = match.fields
        for word in ("missing",):
            self._missing.update(int(n) for n in re.findall(r"\d+", fields.get(word, ""))[:1000])
        number = _global_rank(match)
        if number is None or len(self._ranks) >= _RANKS_MAX:
            return
        rank = self._ranks.setdefault(number, _Rank())
        seq = fields.get("seq") or fields.get("at")
        if seq is not None and (rank.first_seq is None or int(seq) < rank.first_seq):
            rank.first_seq = int(seq)
        if "enqueued" in fields:
            rank.enqueued = int(fields["enqueued"])
        if "queued" in fields:
            rank.queued = int(fields["queued"])
        if "op" in fields:
            rank.ops.add(fields["op"])
        rank.stuck |= "heartbeat" in match.tags
        rank.collective |= "collective" in match.tags

    def _behind(self) -> Suspects:
        """Return the ranks that did not reach the collective; nobody where the reports do not tell."""
        if self._missing:
            return Suspects(ranks=tuple(sorted(self._missing)))
        reported = sorted(self._ranks)
        if self._world is not None and 0 < len(reported) < self._world:
            absent = sorted(set(range(self._world)) - set(reported))
            if len(absent) <= max(1, self._world // 4):
                return Suspects(ranks=tuple(absent))
        for values in (
            {n: r.first_seq for n, r in self._ranks.items()},
            {n: r.enqueued for n, r in self._ranks.items()},
            {n: r.queued for n, r in self._ranks.items()},
        ):
            behind = _lowest(values)
            if behind:
                return Suspects(ranks=behind)
        stuck = [n for n, r in self._ranks.items() if r.stuck and not r.collective]
        if len(stuck) == 1 and len(self._ranks) == 1:
            return Suspects(ranks=tuple(stuck))
        return NOBODY

    def _helps(self) -> RestartHelps | None:
        """Ranks that stand in different collectives run different code: the same order comes again."""
        ops = [frozenset(r.ops) for r in self._ranks.values() if r.ops]
        seqs = {r.first_seq for r in self._ranks.values() if r.first_seq is not None}
        if len(set(ops)) > 1 and len(seqs) > 1 and max(seqs) - min(seqs) > 100:
            return RestartHelps.NO
        return None


def _lowest(values: dict[int, int | None]) -> tuple[int, ...]:
    known = {n: v for n, v in values.items() if v is not None}
    if len(known) < 2 or len(set(known.values())) < 2:
        return ()
    low = min(known.values())
    behind = sorted(n for n, v in known.items() if v == low)
    return tuple(behind) if 2 * len(behind) <= len(known) or len(known) == 2 else ()


def _global_rank(match: LogMatch) -> int | None:
    """Return the rank of the prefix; the bracketed one counts only where there is no prefix."""
    if match.origin.rank is not None:
        return match.origin.rank
    found = _GROUP_RANK.search(match.text)
    if found is None:
        return None
    return int(found[1] or found[2])


def build(job: JobId, thresholds: Thresholds) -> NcclTimeoutDetector:
    """Return the detector of one job."""
    return NcclTimeoutDetector(job, thresholds)
