"""The external power brake: a fault of power supply or rack, not of the GPU.

What it sees
    NVML's power-brake bit (0x80).

Why it matters
    The clock falls to a fraction (382 MHz is typical), often on all GPUs of a node at once.

Looks like it but is not
    The software power cap (0x4), which is normal under full load.

By hand
    `nvidia-smi -q -d PERFORMANCE`; the BMC's event log for supplies; a supply without input power is the usual cause.

Sources
    NVML's clocks-event reasons.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobwatchdog.detectors.base import Thresholds
from jobwatchdog.detectors.gpu_clocks import POWER_BRAKE, GpuTrack, ThrottleDetector
from jobwatchdog.model import JobId, Kind


class PowerBrakeDetector(ThrottleDetector):
    """The power-brake bit."""

    id = "power_brake"
    kind = Kind.POWER_BRAKE

    def slowed(self, track: GpuTrack, others: Mapping[tuple[str, str], GpuTrack]) -> str | None:
        """Return the brake in words."""
        return "hardware power brake slowdown" if (track.reasons or 0) & POWER_BRAKE else None


def build(job: JobId, thresholds: Thresholds) -> PowerBrakeDetector:
    """Return the detector for one job."""
    return PowerBrakeDetector(job, thresholds)
