"""A CUDA call failed: illegal access, device assert, launch failure, no device.

What it sees
------------
Error texts of CUDA, cuBLAS and cuDNN, kernel assertions.

Why it matters
--------------
It surfaces at a later call, often inside a collective, and looks like a communication error.

Looks like it but is not
------------------------
ECC and NVLink errors, and memory exhaustion, which have kinds of their own.

By hand
-------
Run again with CUDA_LAUNCH_BLOCKING=1; look for an XID in the kernel log.

Sources
-------
CUDA runtime error codes.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.CUDA_ERROR)
