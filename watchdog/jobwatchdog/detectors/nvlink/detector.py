"""An NVLink or NVSwitch error.

What it sees
------------
SXid lines, XID 74 and the NVLink 5 family 144 to 150, fabric manager errors.

Why it matters
--------------
Collectives within the node fail or crawl.

Looks like it but is not
------------------------
XIDs of other classes.

By hand
-------
nvidia-smi nvlink -e; /var/log/fabricmanager.log.

Sources
-------
NVIDIA fabric manager guide; gpud SXid table.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.NVLINK)
