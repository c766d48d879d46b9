"""A file system stands still, is full, or lost its server.

What it sees
------------
Stale handles, I/O errors, full disks, Lustre, NFS, GPFS and Ceph messages, tasks blocked in the kernel.

Why it matters
--------------
Processes in uninterruptible sleep cannot be killed; checkpoints and data loading hang.

Looks like it but is not
------------------------
A path that is simply wrong.

By hand
-------
df; dmesg -T | grep -iE "lustre|nfs|blocked for more".

Sources
-------
Linux errno texts; Lustre manual.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.STORAGE)
