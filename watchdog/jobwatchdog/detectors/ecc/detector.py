"""A memory error of a GPU or of the host.

What it sees
------------
Uncorrectable errors in CUDA texts and XIDs, EDAC lines, row-remap failures.

Why it matters
--------------
The node must leave service; a restart on it fails again.

Looks like it but is not
------------------------
Counters that read zero.

By hand
-------
nvidia-smi -q -d ECC,ROW_REMAPPER.

Sources
-------
NVIDIA XID catalogue, Linux EDAC.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.ECC)
