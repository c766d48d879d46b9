"""The built-in detectors by name, and one set of them for a job."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import yaml

from jobwatchdog.detectors.base import BaseDetector, Detector, Thresholds
from jobwatchdog.model import Finding, Job, JobId, Signal

Build = Callable[[JobId, Thresholds], Detector]


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that a detector uses, with its unit and the reason for its value."""

    value: float
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class DetectorDocument:
    """What `detector.yaml` says of a detector."""

    id: str
    summary: str
    status: str
    since: str
    signals: tuple[str, ...]
    level: str
    cause: str
    thresholds: Mapping[str, Threshold]


@cache
def parse_document(text: str) -> DetectorDocument:
    """Read a detector.yaml; KeyError and ValueError name what is missing or odd."""
    raw: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    thresholds = {
        name: Threshold(float(entry["value"]), str(entry["unit"]), str(entry["why"]))
        for name, entry in (raw.get("thresholds") or {}).items()
    }
    return DetectorDocument(
        id=raw["id"],
        summary=raw["summary"],
        status=raw["status"],
        since=str(raw["since"]),
        signals=tuple(raw["signals"]),
        level=raw["level"],
        cause=raw["cause"],
        thresholds=thresholds,
    )


def build(
    job: JobId, documents: Mapping[str, str], added: Mapping[str, Build] = MappingProxyType({})
) -> list[Detector]:
    """Return one instance of each detector for a job, by id; `documents` maps id to the text of detector.yaml.

    `added` makes those that are not built in. One that cannot be made takes part as a `Broken`.
    """
    return [_one(job, name, documents[name], added.get(name)) for name in sorted(documents)]


def _one(job: JobId, name: str, text: str, build: Build | None) -> Detector:
    try:
        thresholds = {key: t.value for key, t in parse_document(text).thresholds.items()}
        if build is None:
            build = importlib.import_module(f"jobwatchdog.detectors.{name}.detector").build
        return build(job, thresholds)
    except Exception as error:
        return Broken(job, name, error)


class Broken(BaseDetector):
    """Stands for a detector that could not be made: the engine leaves it out and says why, the others go on."""

    def __init__(self, job: JobId, name: str, error: Exception) -> None:
        super().__init__(job)
        self.id = name
        self._error = error

    def job_changed(self, job: Job) -> None:
        """Tell the engine."""
        raise self._error

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Tell the engine."""
        raise self._error
