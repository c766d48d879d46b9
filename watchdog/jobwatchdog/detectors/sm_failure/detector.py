"""The fabric lost its subnet manager.

What it sees
------------
OpenSM standby logs that poll in vain, sminfo failures, ports stuck in INIT, SM changes that NCCL reports.

Why it matters
--------------
Running traffic goes on for a while, then every job that needs a new path dies.

Looks like it but is not
------------------------
Sweeps, and the role changes at the start of a subnet manager.

By hand
-------
sminfo; ibdiagnet.

Sources
-------
OpenSM 3.3 on a simulated fabric.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.model import Finding, JobId, Kind, LogMatch, Role


class SmFailureDetector(SignatureDetector):
    """Lost polls count at once, removed ports only when they are many."""

    kind = Kind.SM_FAILURE
    id = "sm_failure"

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._removed: set[str] = set()

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """Wait with removed ports until a rack cannot explain them."""
        if "sm-removed" not in match.tags:
            return [self.finding(match)]
        self._removed.add(match.fields.get("port", ""))
        if len(self._removed) < self.thresholds.get("removed_ports_min", 4.0):
            return []
        return [self.finding(match, role=Role.CAUSE)]


def build(job: JobId, thresholds: Thresholds) -> SmFailureDetector:
    """Return the detector of one job."""
    return SmFailureDetector(job, thresholds)
