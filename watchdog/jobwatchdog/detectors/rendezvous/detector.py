"""The ranks did not find each other at the start.

What it sees
------------
Store time-outs, refused connections, ports in use, missing workers.

Why it matters
--------------
Nothing was trained; a wrong address stays wrong.

Looks like it but is not
------------------------
Store warnings while ranks leave after a clean end.

By hand
-------
nc -vz MASTER_ADDR MASTER_PORT.

Sources
-------
torch.distributed TCPStore and elastic rendezvous.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.RENDEZVOUS)
