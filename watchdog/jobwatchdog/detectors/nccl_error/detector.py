"""NCCL or gloo reported an error: a peer gone, a socket or verb that failed, a configuration that it refuses.

What it sees
------------
NCCL WARN lines, result codes in exceptions, asynchronous errors of the watchdog, gloo connection losses.

Why it matters
--------------
It is most often the echo of a death elsewhere, so it yields to any cause that explains it.

Looks like it but is not
------------------------
NCCL INFO lines with `-> 3`; warnings while ranks leave after a clean end.

By hand
-------
grep "NCCL WARN" LOG, then look at the peer that is named.

Sources
-------
NCCL 2.5 to 2.30 source, transport/net_ib.cc and misc/socket.cc.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import JobId, Kind


def build(job: JobId, thresholds: Thresholds) -> SignatureDetector:
    """Return the detector of one job."""
    return SignatureDetector(job, thresholds, Kind.NCCL_ERROR)
