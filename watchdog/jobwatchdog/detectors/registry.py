"""The built-in detectors by name, and one set of them for a job."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from jobwatchdog.detectors.base import Detector
from jobwatchdog.model import JobId


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


def build(job: JobId, documents: Mapping[str, str], enabled: Iterable[str] | None = None) -> list[Detector]:
    """Return one instance of each detector for a job, by id; `documents` maps id to the text of detector.yaml."""
    wanted = sorted(documents if enabled is None else set(enabled) & set(documents))
    return [_one(job, name, documents[name]) for name in wanted]


def _one(job: JobId, name: str, text: str) -> Detector:
    module = importlib.import_module(f"jobwatchdog.detectors.{name}.detector")
    thresholds = {key: t.value for key, t in parse_document(text).thresholds.items()}
    detector: Detector = module.build(job, thresholds)
    return detector
