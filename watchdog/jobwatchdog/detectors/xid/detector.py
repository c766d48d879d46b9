"""The NVIDIA driver reported an XID that is no memory, bus or NVLink error.

What it sees
------------
XID lines of the kernel log in all shapes. The table `xids.yaml` says what each code means; memory errors are reported as ecc, 79
as gpu_lost, NVLink codes as nvlink. A lone 45 is a consequence and never an incident; 154 names the action for another code.

Why it matters
--------------
Most codes ask for a restart of the job, about 25 for a reset or a reboot; treating all alike drains healthy nodes.

Looks like it but is not
------------------------
SXid lines of NVSwitches; agents that say they skip an event.

By hand
-------
dmesg -T | grep -i xid.

Sources
-------
NVIDIA XID catalogue; gpud; DCGM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml

from jobwatchdog.detectors.base import SignatureDetector, Thresholds, evidence_of
from jobwatchdog.model import CauseClass, Finding, JobId, Kind, LogMatch, RestartHelps, Role, Suspects

# XID 154: "GPU recovery action changed from 0x<a> (<name>) to 0x<b> (<name>)"; the names drift, the numbers do not.
_RECOVERY = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ .{0,60}? to 0x([0-9a-fA-F]+)")
_RECOVERY_NONE = 0
_NVLINK_TEXT = re.compile(r"\bNVLink\b|\bLink (\d+) \(0x")
_FATAL_WORD = re.compile(r"\bNonfatal\b")
_LINK = re.compile(r"\b[Ll]ink (\d+)")


@dataclass(frozen=True, slots=True)
class Xid:
    """One row of the table; `kind` is a kind of incident, or ignore, consequence, recovery."""

    code: int
    name: str
    kind: str
    cause: CauseClass
    restart_helps: RestartHelps
    immediate: str


def parse_table(text: str) -> dict[int, Xid]:
    """Read the table of XIDs."""
    rows = yaml.load(text, Loader=yaml.CSafeLoader)["xids"]
    return {
        int(code): Xid(
            code=int(code),
            name=row["name"],
            kind=row["kind"],
            cause=CauseClass(row.get("cause", "unknown")),
            restart_helps=_helps(row.get("restart_helps", "maybe")),
            immediate=row.get("immediate", "ignore"),
        )
        for code, row in rows.items()
    }


def _helps(word: str | bool) -> RestartHelps:
    if isinstance(word, bool):  # YAML 1.1 reads a bare yes as a truth value
        return RestartHelps.YES if word else RestartHelps.NO
    return RestartHelps(word)


@lru_cache(maxsize=1)
def bundled_table() -> dict[int, Xid]:
    """Return the table that ships with the detector."""
    return parse_table((files("jobwatchdog.detectors.xid") / "xids.yaml").read_text(encoding="utf-8"))


class XidDetector(SignatureDetector):
    """Looks each code up; reports memory, bus and NVLink codes under their own kinds."""

    kind = Kind.XID
    id = "xid"

    def __init__(self, job: JobId, thresholds: Thresholds | None = None, table: dict[int, Xid] | None = None) -> None:
        super().__init__(job, thresholds)
        self.table = table if table is not None else bundled_table()

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """Return what the code means; nothing for codes that mean nothing by themselves."""
        text = match.fields.get("xid")
        if text is None or not text.isdigit():
            return [self.finding(match)]
        code, detail = int(text), match.fields.get("detail", "")
        row = self.table.get(code) or Xid(
            code, "not in the table", "xid", CauseClass.UNKNOWN, RestartHelps.MAYBE, "human"
        )
        if row.kind in ("ignore", "consequence"):
            return []
        if row.kind == "recovery":
            return self._recovery(match, detail, code)
        nvlink = row.kind != "gpu_lost" and _NVLINK_TEXT.search(detail)
        kind = Kind.NVLINK if nvlink else Kind(row.kind)
        helps = row.restart_helps
        if kind is Kind.NVLINK and not _FATAL_WORD.search(detail):
            helps = RestartHelps.NO
        return [self._of(match, kind, code, row.cause if not nvlink else CauseClass.HARDWARE, helps, row.name)]

    def _recovery(self, match: LogMatch, detail: str, code: int) -> list[Finding]:
        found = _RECOVERY.search(detail)
        if found and int(found[1], 16) == _RECOVERY_NONE:
            return []
        name = "recovery action changed"
        return [self._of(match, Kind.XID, code, CauseClass.HARDWARE, RestartHelps.NO, name, Role.SYMPTOM)]

    def _of(
        self,
        match: LogMatch,
        kind: Kind,
        code: int,
        cause: CauseClass,
        helps: RestartHelps,
        name: str,
        role: Role = Role.CAUSE,
    ) -> Finding:
        link = _LINK.search(match.fields.get("detail", "")) if kind is Kind.NVLINK else None
        node = match.origin.node
        return Finding(
            kind=kind,
            job=self.job,
            detector=self.id,
            role=role,
            confidence=match.confidence,
            cause_class=cause,
            restart_helps=helps,
            suspects=Suspects(
                nodes=(node,) if node else (),
                gpus=(match.fields["gpu"].lower(),),
                links=(f"link {link[1]}",) if link else (),
            ),
            evidence=(evidence_of(match),),
            onset_s=match.t_s,
            xid=code,
            summary=f"XID {code}: {name}",
        )


def build(job: JobId, thresholds: Thresholds) -> XidDetector:
    """Return the detector of one job."""
    return XidDetector(job, thresholds)
