"""GPUs that are too hot for their clock.

What it sees
    NVML's thermal slowdown bits (0x40 hardware, 0x20 software), in `nvidia-smi -q` reports, CSV rows and live
    samples. No table of temperatures: models differ, and newer ones report margins only. Memory may be the hot part
    while the die is cool.

Why it matters
    One hot GPU sets the pace of all, and heat wears the board out. A restart on the same node changes nothing.

Looks like it but is not
    A power cap under full load; a processor core of the host that was throttled for a millisecond; "Not Active".

By hand
    `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK`; look at fans, air flow or coolant, and at the neighbours.

Sources
    NVML's clocks-event reasons; fleet checks that use a share of time instead of single readings.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobwatchdog.detectors.base import Thresholds
from jobwatchdog.detectors.gpu_clocks import HW_THERMAL, SW_THERMAL, GpuTrack, ThrottleDetector
from jobwatchdog.model import JobId, Kind


class ThermalThrottleDetector(ThrottleDetector):
    """The two thermal bits."""

    id = "thermal_throttle"
    kind = Kind.THERMAL_THROTTLE

    def slowed(self, track: GpuTrack, others: Mapping[tuple[str, str], GpuTrack]) -> str | None:
        """Return which of the two it is."""
        reasons = track.reasons or 0
        if reasons & HW_THERMAL:
            return "hardware thermal slowdown"
        return "software thermal slowdown" if reasons & SW_THERMAL else None


def build(job: JobId, thresholds: Thresholds) -> ThermalThrottleDetector:
    """Return the detector for one job."""
    return ThermalThrottleDetector(job, thresholds)
