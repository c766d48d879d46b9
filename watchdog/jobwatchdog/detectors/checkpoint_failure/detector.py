"""A checkpoint could not be saved or loaded.

What it sees
------------
Corrupt archives, missing shards, failed writes.

Why it matters
--------------
A restart that takes the same checkpoint fails again.

Looks like it but is not
------------------------
Slow checkpoints.

By hand
-------
jobwatchdog looks for the last good one itself; ls -lat the folder.

Sources
-------
torch.serialization, torch.distributed.checkpoint, safetensors, DeepSpeed.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.CHECKPOINT_FAILURE)
