"""A GPU ran out of memory.

What it sees
------------
PyTorch, driver, cuBLAS, NCCL and JAX wordings of a failed allocation. The message tells plain exhaustion from fragmentation.

Why it matters
--------------
At a steady shape it comes again at the same step, a restart alone burns hours.

Looks like it but is not
------------------------
The host running out of memory; an allocator warning that is retried with success.

By hand
-------
nvidia-smi; compare "reserved but unallocated" with what was asked for.

Sources
-------
PyTorch CUDACachingAllocator.
"""

from __future__ import annotations

import re
from dataclasses import replace

from jobwatchdog.detectors.base import SignatureDetector, Thresholds, evidence_of
from jobwatchdog.model import Finding, JobId, Kind, LogMatch, RestartHelps, Signal, Suspects

_UNIT = {
    "bytes": 1.0,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
}
_SIZE = r"([\d.]+) ([KMGT]i?B|bytes)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_FREE_OLD = re.compile(rf"{_SIZE} already allocated; {_SIZE} free; {_SIZE} reserved")
_NCCL_DEVICE = re.compile(r"^\S+:\d+:\d+ \[(\d+)\] ")


def fragmented(text: str, ratio: float) -> bool:
    """Whether the allocator held enough memory that it could not hand out in one piece."""
    asked = _size(_ASKED.search(text))
    if asked is None:
        return False
    unallocated = _size(_UNALLOCATED.search(text))
    if unallocated is None and (old := _FREE_OLD.search(text)):
        unallocated = float(old[5]) * _UNIT[old[6]] - float(old[1]) * _UNIT[old[2]]
    return unallocated is not None and unallocated >= ratio * asked


def _size(match: re.Match[str] | None) -> float | None:
    return None if match is None else float(match[1]) * _UNIT[match[2]]


class CudaOomDetector(SignatureDetector):
    """Says of each failed allocation whether it was exhaustion or fragmentation, and who held the memory."""

    kind = Kind.CUDA_OOM
    id = "cuda_oom"
    listens = (LogMatch,)

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._holders: dict[int, float] = {}
        self._last: Finding | None = None

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take the failure and the lines that follow it."""
        if isinstance(signal, LogMatch) and self._last is not None:
            if "oom-holder" in signal.tags:
                return self._holder(signal)
            if signal.signature == "torch-oom-detail":
                gpu = signal.fields["gpu"]
                found = replace(self._last, suspects=self._last.suspects.merged(Suspects(gpus=(gpu,))))
                self._last = found
                return [replace(found, evidence=(evidence_of(signal),))]
        return super().observe(signal, now_s)

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """Add the rank that printed it: it is the one whose memory was short."""
        gpu = match.fields.get("gpu")
        if gpu is None and (device := _NCCL_DEVICE.match(match.text)):
            gpu = device[1]
        rank = match.origin.rank
        suspects = Suspects(ranks=() if rank is None else (rank,), gpus=(gpu,) if gpu else ())
        finding = self.finding(match, suspects=suspects)
        if finding.restart_helps is None and fragmented(match.text, self.thresholds.get("fragmented_ratio", 1.0)):
            finding = replace(finding, restart_helps=RestartHelps.MAYBE, measures={"fragmented": 1.0})
        self._last = finding
        self._holders.clear()
        return [finding]

    def _holder(self, match: LogMatch) -> list[Finding]:
        """Another process that holds most of the GPU is the culprit, and its end would help."""
        assert self._last is not None, "asked for only after a failure"
        pid, used = int(match.fields["pid"]), float(match.fields["used"])
        self._holders[pid] = used
        biggest = max(self._holders, key=lambda p: (self._holders[p], p))
        if biggest != pid or len(self._holders) < 2:
            return []
        return [
            replace(
                self._last,
                suspects=self._last.suspects.merged(Suspects(pids=(pid,))),
                restart_helps=RestartHelps.MAYBE,
                replaces=True,
                evidence=(evidence_of(match),),
            )
        ]


def build(job: JobId, thresholds: Thresholds) -> CudaOomDetector:
    """Return the detector of one job."""
    return CudaOomDetector(job, thresholds)
