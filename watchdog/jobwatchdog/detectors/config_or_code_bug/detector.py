"""The program or its configuration is wrong: the same start fails the same way.

What it sees
------------
Uncaught Python exceptions of the classes that repeat, shape mismatches, refused command lines, missing programs.

Why it matters
--------------
Restarting it burns the same GPU hours again.

Looks like it but is not
------------------------
Tracebacks of optional imports that the run survives; exceptions of peers of a dead rank.

By hand
-------
Read the last traceback of the first rank that failed.

Sources
-------
Python exception hierarchy.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.CONFIG_OR_CODE_BUG)
