"""A node of the job was lost.

What it sees
------------
Slurm, Ray, PBS and Kubernetes wordings of a lost node.

Why it matters
--------------
The rest of the job is killed or hangs.

Looks like it but is not
------------------------
The node in the CANCELLED line is the batch host, not the lost one.

By hand
-------
scontrol show node NODE.

Sources
-------
slurmctld and srun messages.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.SLURM_NODE_FAIL)
