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
grep "NCCL WARN" LOG, then look at the host that prints and at the peer that it names.

Sources
-------
NCCL 2.5 to 2.30 source, transport/net_ib.cc and misc/socket.cc.
"""

from __future__ import annotations

from dataclasses import replace

from jobwatchdog.detectors.base import SignatureDetector, Thresholds, suspects_of
from jobwatchdog.model import NOBODY, Finding, Job, JobId, Kind, LogMatch, Suspects

_FABRIC = "fabric"


class NcclErrorDetector(SignatureDetector):
    """What lines name, and the one adapter that alone reports failed work requests.

    Each side of a broken path reports it, so as soon as a second one does, neither is named.
    """

    kind = Kind.NCCL_ERROR
    id = "nccl_error"

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._attempt = 0
        self._sides: set[tuple[str, int | None]] = set()  # node and its GPU; two are as good as many

    def job_changed(self, job: Job) -> None:
        """A new attempt starts from nothing."""
        if job.attempt != self._attempt:
            self._attempt = job.attempt
            self._sides.clear()

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """Name the reporter of a failed work request for as long as it is the only one."""
        node = match.origin.node
        if _FABRIC not in match.tags or node is None or suspects_of(match):
            return super().matched(match, now_s)
        if len(self._sides) < 2:
            self._sides.add((node, match.origin.local_rank))
        return [replace(self.finding(match, suspects=self._only_side()), replaces=True)]

    def _only_side(self) -> Suspects:
        if len(self._sides) != 1:
            return NOBODY
        ((node, gpu),) = self._sides
        return Suspects(nodes=(node,), gpus=() if gpu is None else (str(gpu),))


def build(job: JobId, thresholds: Thresholds) -> NcclErrorDetector:
    """Return the detector of one job."""
    return NcclErrorDetector(job, thresholds)
