"""A data-loader worker died or the loader stands still.

What it sees
------------
Worker deaths, shared-memory exhaustion, loader time-outs.

Why it matters
--------------
Ranks wait for data with GPUs at 100 %.

Looks like it but is not
------------------------
Advice about the number of workers.

By hand
-------
df -h /dev/shm; dmesg -T | grep -i "killed process".

Sources
-------
torch.utils.data.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.DATALOADER)
