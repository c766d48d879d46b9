"""GPUs whose clock is low without heat or a power brake being named.

What it sees
    The hardware slowdown bit (0x8) alone, over time; or an SM clock below three quarters of the median of the job's
    GPUs while busy, whatever reason is given (a power cap counts only in this way).

Why it matters
    The slowest GPU sets the pace of a synchronous job.

Looks like it but is not
    A power cap at full load; a flash during a change of performance state; application clocks set on purpose on all
    GPUs alike; an idle GPU.

By hand
    `nvidia-smi --query-gpu=index,clocks.sm,clocks.max.sm,clocks_event_reasons.active,utilization.gpu --format=csv -l 1`
    on two nodes side by side.

Sources
    NVML's clocks-event reasons; relative clocks need no table of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from jobwatchdog.detectors.base import Thresholds
from jobwatchdog.detectors.gpu_clocks import (
    HW_SLOWDOWN,
    HW_THERMAL,
    IDLE,
    POWER_BRAKE,
    SW_THERMAL,
    GpuTrack,
    ThrottleDetector,
)
from jobwatchdog.model import Finding, JobId, Kind


class ClockThrottleDetector(ThrottleDetector):
    """The slowdown bit alone, and the comparison with the others."""

    id = "clock_throttle"
    kind = Kind.CLOCK_THROTTLE

    def slowed(self, track: GpuTrack, others: Mapping[tuple[str, str], GpuTrack]) -> str | None:
        """Return the reason; heat and brake are other detectors' business."""
        reasons = track.reasons or 0
        if reasons & (HW_THERMAL | SW_THERMAL | POWER_BRAKE | IDLE):
            return None
        if reasons & HW_SLOWDOWN:
            return "hardware slowdown without a thermal or power-brake reason"
        return self._behind_peers(track, others)

    def _behind_peers(self, track: GpuTrack, others: Mapping[tuple[str, str], GpuTrack]) -> str | None:
        th = self.thresholds
        if track.clock_mhz is None or (track.util_pct or 0.0) < th["util_min"]:
            return None
        peers = [o for o in others.values() if o is not track and (o.util_pct or 0.0) >= th["util_min"]]
        busy = [o.clock_mhz for o in peers if o.clock_mhz]
        if len(busy) < th["peers_min"]:
            return None
        typical = median(busy)
        if track.clock_mhz >= th["ratio_min"] * typical:
            return None
        return f"SM clock {track.clock_mhz:.0f} MHz under load, its peers run at {typical:.0f} MHz"

    def _without_time(self, track: GpuTrack, words: str | None) -> list[Finding]:
        """The bit alone in a part of a report says little: wait for the clock."""
        if track.clock_mhz is None and words is not None and words.startswith("hardware"):
            return []
        return super()._without_time(track, words)


def build(job: JobId, thresholds: Thresholds) -> ClockThrottleDetector:
    """Return the detector for one job."""
    return ClockThrottleDetector(job, thresholds)
