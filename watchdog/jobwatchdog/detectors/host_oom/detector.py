"""The host, or the cgroup of the job, ran out of memory.

What it sees
------------
Kernel, Slurm, Ray and Kubernetes wordings of an out-of-memory kill, failed host allocations.

Why it matters
--------------
The killed process looks like a crash, or like a dead data-loader worker.

Looks like it but is not
------------------------
GPU memory exhaustion.

By hand
-------
dmesg -T | grep -i "killed process".

Sources
-------
Linux mm/oom_kill.c, slurmstepd, Ray memory monitor.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.HOST_OOM)
