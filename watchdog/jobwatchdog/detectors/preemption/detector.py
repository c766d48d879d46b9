"""The scheduler or the cloud took the job's nodes.

What it sees
------------
Slurm, Ray and cloud wordings of a preemption.

Why it matters
--------------
The job is healthy; it only needs nodes.

Looks like it but is not
------------------------
A cancel by its user.

By hand
-------
sacct -j JOB -o state,reason.

Sources
-------
slurmstepd messages; Ray Train.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.PREEMPTION)
