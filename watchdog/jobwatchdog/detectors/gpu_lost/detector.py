"""A GPU fell off the bus.

What it sees
------------
The XID 79 line, the driver lines without a code, and what nvidia-smi says afterwards.

Why it matters
--------------
The job hangs or crashes, and every restart on the node fails.

Looks like it but is not
------------------------
A GPU that is merely slow to answer.

By hand
-------
nvidia-smi -L; dmesg -T | grep -i "fallen off".

Sources
-------
NVIDIA driver messages; PCIe AER.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.GPU_LOST)
