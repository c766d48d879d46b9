"""What several folders of tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import pytest

from jobwatchdog.detectors.base import BaseDetector, Detector, SignatureDetector
from jobwatchdog.engine import Engine
from jobwatchdog.model import Finding, Job, JobId, JobPhase, JobStateSeen, Kind, Signal


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite-transcripts`: write down what the engine decides now, to be reviewed as a diff."""
    parser.addoption("--rewrite-transcripts", action="store_true", help="rewrite tests/transcripts/*.txt")


class _Death(BaseDetector):
    id = "death"

    def __init__(self, job: JobId) -> None:
        super().__init__(job)
        self.said, self.attempt = False, 0

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        if isinstance(signal, JobStateSeen) and signal.state is JobPhase.FAILED and not self.said:
            self.said = True
            return [Finding(kind=Kind.RANK_CRASH, job=self.job, detector="death")]
        return []

    def job_changed(self, job: Job) -> None:
        if job.attempt != self.attempt:
            self.said, self.attempt = False, job.attempt


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., Engine]:
    """An engine with all built-in detectors under the policies given as text."""
    from jobwatchdog import bundled
    from jobwatchdog.detectors import registry
    from jobwatchdog.incidents import CausalTable
    from jobwatchdog.policy.load import load_policy

    load = cache(lambda text: load_policy(text, "policy.yaml"))
    documents = {
        name: text
        for name, text in bundled.detector_documents().items()
        if find_spec(f"jobwatchdog.detectors.{name}.detector")
    }
    causes = CausalTable.parse(bundled.causal_table_text())

    def detectors(job: JobId) -> list[Detector]:
        missing = [kind for kind in Kind if kind.value not in documents]
        built = [*registry.build(job, documents), *(SignatureDetector(job, None, kind) for kind in missing)]
        return [*built, _Death(job)] if Kind.RANK_CRASH in missing else built

    def make(*policies: str, **options: object) -> Engine:
        return Engine(detectors, causes, [load(text) for text in policies], **options)  # type: ignore[arg-type]

    return make
