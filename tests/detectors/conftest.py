"""The real patterns and detectors, compiled once."""

from __future__ import annotations

import pytest

from jobwatchdog import bundled
from jobwatchdog.detectors import registry
from jobwatchdog.incidents import CausalTable
from jobwatchdog.signals.catalogue import Catalogue
from jobwatchdog.signals.scanner import Scanner, compile_database
from jobwatchdog.testing.policy_tests import Kit


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """All bundled signatures, their patterns and examples checked."""
    return Catalogue.parse(bundled.signature_texts(), check=True)


@pytest.fixture(scope="session")
def database(catalogue: Catalogue) -> bytes:
    """The multi-pattern database of it."""
    return compile_database(catalogue)


@pytest.fixture(scope="session")
def kit(catalogue: Catalogue, database: bytes) -> Kit:
    """What cases with log lines need."""
    documents, causes = bundled.detector_documents(), CausalTable.parse(bundled.causal_table_text())
    return Kit(
        scanner=lambda: Scanner(catalogue, database=database),
        detectors_for=lambda job: registry.build(job, documents),
        causes=causes,
    )
