"""What several folders of tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache

import pytest

from jobwatchdog import bundled
from jobwatchdog.detectors import registry
from jobwatchdog.engine import Engine
from jobwatchdog.incidents import CausalTable
from jobwatchdog.policy.load import load_policy

# pytest-asyncio asks for the current loop before it makes its own; without this the answer is a new loop, never closed.
asyncio.set_event_loop(None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite-transcripts`: write down what the engine decides now, to be reviewed as a diff."""
    parser.addoption("--rewrite-transcripts", action="store_true", help="rewrite tests/transcripts/*.txt")


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., Engine]:
    """An engine with all built-in detectors under the policies given as text."""
    documents = bundled.detector_documents()
    causes = CausalTable.parse(bundled.causal_table_text())
    load = cache(lambda text: load_policy(text, "policy.yaml"))

    def make(*policies: str, **options: object) -> Engine:
        loaded = [load(text) for text in policies]
        return Engine(lambda job: registry.build(job, documents), causes, loaded, **options)  # type: ignore[arg-type]

    return make
