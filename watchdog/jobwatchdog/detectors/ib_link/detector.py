"""An InfiniBand link or host adapter failed.

What it sees
------------
Port events in NCCL, kernel and adapter messages, UCX errors, counter alarms.

Why it matters
--------------
One bad cable stops every job that crosses it.

Looks like it but is not
------------------------
Ethernet ports that nobody uses; ports that were down from the start.

By hand
-------
ibstat; ibqueryerrors.

Sources
-------
mlx5 driver and NCCL net_ib.cc wordings.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.IB_LINK)
