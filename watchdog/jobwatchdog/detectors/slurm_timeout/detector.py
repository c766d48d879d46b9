"""The job reached its time limit.

What it sees
------------
The cancel line with its reason, in Slurm's, PBS's, LSF's and Kubernetes' words.

Why it matters
--------------
It is no fault: the next start goes on from the checkpoint.

Looks like it but is not
------------------------
Time-outs of collectives.

By hand
-------
sacct -j JOB -o timelimit,elapsed.

Sources
-------
slurmstepd messages.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.SLURM_TIMEOUT)
