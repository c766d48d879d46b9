"""A site's plugin adds to the watchdog, or is left out with a reason; it never takes anything down."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from jobwatchdog import bundled, plugins
from jobwatchdog.detectors import registry
from jobwatchdog.detectors.base import Detector
from jobwatchdog.detectors.registry import Broken
from jobwatchdog.engine import Engine
from jobwatchdog.incidents import CausalTable
from jobwatchdog.model import DetectorFailed, Job, JobId, JobRegistered

Point = Callable[[str, str], EntryPoint]

CATALOGUE = """
version: 1
signatures:
  - id: site-scratch-full
    kind: storage
    pattern: 'scratch quota exceeded on \\\\S+'
    summary: The site's scratch file system is full for this user.
    matches: ["scratch quota exceeded on /scratch/u1"]
    rejects: ["scratch quota warning on /scratch/u1"]
"""
GOOD = f'''
API_VERSION = 1
def register(registry):
    registry.add_catalogue("site", """{CATALOGUE}""")
    registry.add_detector(DOCUMENT, build)
from jobwatchdog.detectors.base import BaseDetector
class Mine(BaseDetector):
    id = "site_mine"
def build(job, thresholds):
    return Mine(job, thresholds)
DOCUMENT = """
id: site_mine
summary: A detector of the site's own.
status: experimental
since: "0.1"
signals: [LogMatch]
level: warning
cause: software
"""
'''


@pytest.fixture
def point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Point:
    """Make an entry point from the text of a module."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, text: str) -> EntryPoint:
        module = f"plugin_for_test_{name}"
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return EntryPoint(name, f"{module}:register", plugins.GROUP)

    return make


def test_a_plugin_adds_signatures_and_detectors(point: Point) -> None:
    """Through the one door."""
    found = plugins.load([point("a", GOOD)])
    assert found.problems == ()
    assert [name for name, _ in found.registry.catalogues] == ["site"]
    assert [d.id for d in _build(found)] == sorted([*bundled.detector_documents(), "site_mine"])


def test_a_broken_plugin_is_left_out_whole_and_the_others_stay(point: Point) -> None:
    """What it registered before it failed goes with it."""
    half = GOOD.replace("registry.add_detector(DOCUMENT, build)", "raise RuntimeError('no licence')")
    found = plugins.load([point("z", GOOD), point("half", half), point("syntax", "def register(:")])
    assert found.loaded == ("z",)
    assert len(found.problems) == 2
    assert "plugin half (plugin_for_test_half:register) is left out: RuntimeError: no licence" in found.problems
    assert len(found.registry.catalogues) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GOOD.replace("API_VERSION = 1", "API_VERSION = 2"), "made for API_VERSION 2, this release offers 1"),
        (GOOD.replace("API_VERSION = 1", ""), "made for API_VERSION None"),
        (GOOD.replace("id: site_mine", "id: rank_crash"), "detector rank_crash is there already"),
        (GOOD.replace("quota exceeded on", "(quota"), "site:4: signature site-scratch-full: bad pattern"),
        (
            GOOD.replace("site-scratch-full", "nccl-watchdog-timeout"),
            "signature nccl-watchdog-timeout is there already",
        ),
    ],
)
def test_what_a_plugin_may_not_do_is_refused_with_the_reason(point: Point, text: str, why: str) -> None:
    """One line that a site's engineer can act on."""
    found = plugins.load([point("p", text)])
    assert found.loaded == ()
    assert why in found.problems[0]


def test_of_two_that_bring_the_same_the_first_by_name_stays(point: Point) -> None:
    """Order does not depend on how packages were installed."""
    found = plugins.load([point("b", GOOD), point("a", GOOD)])
    assert found.loaded == ("a",)
    assert "plugin b" in found.problems[0]


def test_a_detector_that_cannot_be_made_is_reported_and_the_others_watch() -> None:
    """Fail open: at import time as at run time."""
    documents = bundled.detector_documents()
    documents["lost"] = documents["xid"].replace("id: xid", "id: lost")
    engine = Engine(lambda job: registry.build(job, documents), CausalTable.parse(bundled.causal_table_text()), [])
    job = Job(id=JobId("j"), launcher="log")
    failed = [d for d in engine.handle(JobRegistered(now_s=1.0, job=job)) if isinstance(d, DetectorFailed)]
    assert [(d.detector, "No module named" in d.error) for d in failed] == [("lost", True)]
    assert not [d for d in engine.handle(JobRegistered(now_s=2.0, job=job)) if isinstance(d, DetectorFailed)]


def _build(found: plugins.Plugins) -> list[Detector]:
    documents = bundled.detector_documents() | found.registry.documents
    made = registry.build(JobId("j"), documents, found.registry.detectors)
    assert not [one for one in made if isinstance(one, Broken)]
    return list(made)
