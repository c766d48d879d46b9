"""The rank that is always last, from Megatron's straggler reports.

What it sees
    `MnClk/Rnk` and `MxClk/Rnk`: the same rank with the lowest clock in three of five reports, below four fifths of
    the highest.

Why it matters
    A synchronous job runs at the pace of its slowest rank.

Looks like it but is not
    A lowest rank that is another one each time; small differences, which every fleet has.

By hand
    Compare step times of ranks without their collectives; swap the node out and look again.

Sources
    Megatron-LM's straggler detector; relative scores of NVIDIA's resiliency extension.
"""

from __future__ import annotations

from collections import deque

from jobwatchdog.detectors.base import BaseDetector, Thresholds
from jobwatchdog.model import Evidence, Finding, GpuSample, JobId, Kind, Signal, Suspects

_REPORTS_KEPT = 5


class StragglerDetector(BaseDetector):
    """The last few reports of who was slowest."""

    id = "straggler"
    listens = (GpuSample,)

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._slowest: deque[int | None] = deque(maxlen=_REPORTS_KEPT)
        self._told: set[int] = set()

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take the slow half of a straggler report."""
        if not isinstance(signal, GpuSample) or not signal.gpu.startswith("rank "):
            return []
        clock, fastest = signal.sm_clock_mhz, signal.sm_clock_max_mhz
        if clock is None or not fastest or clock == fastest:
            return []
        ratio = clock / fastest
        rank = int(signal.gpu.removeprefix("rank "))
        self._slowest.append(rank if ratio < self.thresholds["ratio_min"] else None)
        if rank in self._told or self._slowest.count(rank) < self.thresholds["reports"]:
            return []
        self._told.add(rank)
        place = signal.origin
        return [
            Finding(
                kind=Kind.STRAGGLER, job=self.job, detector=self.id, confidence=0.7, suspects=Suspects(ranks=(rank,)),
                evidence=(Evidence(text=signal.text, file=place.file, line=place.line, t_s=signal.t_s),),
                measures={"clock_ratio": ratio, "sm_clock_mhz": clock}, onset_s=signal.t_s,
                summary=f"rank {rank} is slowest again and again: {clock:.0f} of {fastest:.0f} MHz",
            )
        ]  # fmt: skip


def build(job: JobId, thresholds: Thresholds) -> StragglerDetector:
    """Return the detector for one job."""
    return StragglerDetector(job, thresholds)
