"""What sites add: catalogues of signatures and detectors, through entry points `jobwatchdog.plugins`.

Each entry point names a function `register(registry: Registry) -> None` in a module that states `API_VERSION = 1`.
Plugins are loaded in the order of their names. One that is broken, made for another API, or adds what is there
already is left out as a whole and reported; the rest goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from jobwatchdog import bundled
from jobwatchdog.detectors import registry as detectors
from jobwatchdog.detectors.base import Detector
from jobwatchdog.detectors.registry import Build, parse_document
from jobwatchdog.model import JobId
from jobwatchdog.signals.catalogue import Catalogue, Signature

API_VERSION: Final = 1
GROUP: Final = "jobwatchdog.plugins"


class PluginError(ValueError):
    """What a plugin asks for cannot be had; the text says why."""


@dataclass(slots=True)
class Registry:
    """Takes what plugins add; checked as it is added."""

    catalogues: list[tuple[str, str]] = field(default_factory=list)
    detectors: dict[str, Build] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    _signatures: set[str] = field(default_factory=set)

    def add_catalogue(self, name: str, text: str) -> None:
        """Add a catalogue of log signatures, in YAML; CatalogueError says what is wrong in which line."""
        found = {one.id for one in Catalogue.parse([(name, text)], check=True).signatures}
        known = self._signatures | {one.id for one in _bundled_signatures()}
        if both := sorted(found & known):
            raise PluginError(f"signature {', '.join(both)} is there already")
        self.catalogues.append((name, text))
        self._signatures |= found

    def add_detector(self, document: str, build: Build) -> None:
        """Add a detector: the text of its detector.yaml, and `build(job, thresholds)` that makes one for a job."""
        name = parse_document(document).id
        if name in self.detectors or name in bundled.detector_documents():
            raise PluginError(f"detector {name} is there already")
        self.detectors[name], self.documents[name] = build, document

    def _with(self, other: Registry) -> Registry:
        return Registry(
            self.catalogues + other.catalogues,
            self.detectors | other.detectors,
            self.documents | other.documents,
            self._signatures | other._signatures,
        )

    def copy(self) -> Registry:
        """Return another with the same content."""
        return self._with(Registry())


@dataclass(frozen=True, slots=True)
class Plugins:
    """Everything that was added, who added it, and what was left out for which reason."""

    registry: Registry
    loaded: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def load(points: Iterable[EntryPoint]) -> Plugins:
    """Load plugins in name order; of one that fails nothing stays."""
    kept, loaded, problems = Registry(), [], []
    for point in sorted(points, key=lambda one: one.name):
        trial = kept.copy()
        try:
            _register(point, trial)
        except Exception as error:  # a site's plugin must not take the watchdog down
            words = str(error).strip() or "no reason given"
            problems.append(f"plugin {point.name} ({point.value}) is left out: {type(error).__name__}: {words}")
            continue
        kept = trial
        loaded.append(point.name)
    return Plugins(kept, tuple(loaded), tuple(problems))


def _register(point: EntryPoint, registry: Registry) -> None:
    register: Callable[[Registry], None] = point.load()
    stated = getattr(sys.modules[register.__module__], "API_VERSION", None)
    if stated != API_VERSION:
        raise PluginError(f"it is made for API_VERSION {stated}, this release offers {API_VERSION}")
    register(registry)


@cache
def installed() -> Plugins:
    """Load the plugins of this environment, once."""
    return load(entry_points(group=GROUP))


def detectors_for() -> Callable[[JobId], list[Detector]]:
    """Return what makes a job's detectors: the built-in ones and those of plugins."""
    added = installed().registry
    documents = bundled.detector_documents() | added.documents
    return lambda job: detectors.build(job, documents, added.detectors)


@cache
def _bundled_signatures() -> tuple[Signature, ...]:
    return tuple(Catalogue.parse(bundled.signature_texts(), check=False).signatures)
