"""Loss-spike rules side by side: BLOOM's published spike, heavy-tailed noise, single bad batches, plateaus.

    python benchmarks/loss_spike.py [--steps 100000] [--seed 1]

The published rules are re-implemented from their descriptions, with their defaults. Noise is Student t with three
degrees of freedom: with Gaussian noise every rule is perfect, so that proves nothing.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from jobwatchdog.detectors.loss_spike.detector import LossSpikeDetector
from jobwatchdog.detectors.registry import parse_document
from jobwatchdog.model import JobId, StepReport

BLOOM = [
    (2.199, 0.242), (2.220, 0.947), (2.595, 2.39), (2.242, 15.9), (2.345, 145.0),
    (5.098, 960.0), (3.492, 353.0), (3.213, 379.0), (2.805, 650.0),
]  # fmt: skip
BLOOM_FIRST = 31214

Record = tuple[float, float]


class Rule(Protocol):
    """One rule: a record in, whether it fires out."""

    def add(self, step: int, loss: float, grad: float) -> bool: ...


class LlmFoundry:
    """Loss at twice the mean of the last 100 for more than 4 records in a row."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=100)
        self._row = 0

    def add(self, step: int, loss: float, grad: float) -> bool:
        full = len(self._window) == self._window.maxlen
        self._row = self._row + 1 if full and loss >= 2 * statistics.fmean(self._window) else 0
        self._window.append(loss)
        return self._row > 4


class Lightning:
    """Rising, and further than twice the mean of the last ten from it."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=10)

    def add(self, step: int, loss: float, grad: float) -> bool:
        mean = statistics.fmean(self._window) if len(self._window) == 10 else math.inf
        fired = loss > (self._window[-1] if self._window else math.inf) and abs(loss - mean) >= 2 * mean
        self._window.append(loss)
        return fired


class InternEvo:
    """One and a half times the record before."""

    def __init__(self) -> None:
        self._before = math.inf

    def add(self, step: int, loss: float, grad: float) -> bool:
        fired = loss > 1.5 * self._before
        self._before = loss
        return fired


class OlmoCore:
    """Six standard deviations over the last 128, of the loss or of the gradient norm."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=128)
        self._grads: deque[float] = deque(maxlen=128)

    def add(self, step: int, loss: float, grad: float) -> bool:
        fired = self._over(self._losses, loss) or self._over(self._grads, grad)
        self._losses.append(loss)
        self._grads.append(grad)
        return fired

    @staticmethod
    def _over(window: deque[float], value: float) -> bool:
        if len(window) < 64:
            return False
        mean = sum(window) / len(window)
        spread = math.sqrt(sum((x - mean) ** 2 for x in window) / len(window))
        return spread > 0 and (value - mean) / spread > 6


class Ours:
    """The detector itself, any confidence."""

    def __init__(self) -> None:
        folder = Path(__file__).resolve().parents[1] / "watchdog/jobwatchdog/detectors/loss_spike"
        document = parse_document((folder / "detector.yaml").read_text())
        thresholds = {name: t.value for name, t in document.thresholds.items()}
        self._detector = LossSpikeDetector(JobId("bench"), thresholds)

    def add(self, step: int, loss: float, grad: float) -> bool:
        report = StepReport(framework="bench", step=step, loss=loss, grad_norm=grad)
        return any(not f.recovered for f in self._detector.observe(report, float(step)))


RULES: dict[str, Callable[[], Rule]] = {
    "llm-foundry 2x mean, > 4 in a row": LlmFoundry,
    "Lightning 3x mean of 10": Lightning,
    "InternEvo 1.5x previous": InternEvo,
    "OLMo-core 6 sigma of 128": OlmoCore,
    "jobwatchdog": Ours,
}


def student_t3(rng: random.Random) -> float:
    """One draw of Student's t with three degrees of freedom."""
    chi2 = rng.gauss(0, 1) ** 2 + rng.gauss(0, 1) ** 2 + rng.gauss(0, 1) ** 2
    return rng.gauss(0, 1) / math.sqrt(chi2 / 3)


def noise(rng: random.Random, n: int, share: float) -> Iterator[Record]:
    """A slowly falling loss with heavy-tailed noise of `share` of its level, on the gradient norm too."""
    for i in range(n):
        level = 2.2 + 0.4 * math.exp(-i / 20_000)
        yield level * (1 + share * student_t3(rng)), 0.25 * math.exp(0.1 * student_t3(rng))


def calm(rng: random.Random, n: int) -> Iterator[Record]:
    """A steady stretch before the event of a scenario."""
    for _ in range(n):
        yield 2.2 * (1 + 0.007 * student_t3(rng)), 0.25 * math.exp(0.1 * rng.gauss(0, 1))


def episodes(rule: Rule, records: Iterator[Record]) -> int:
    """Firings, those within 50 steps counted as one."""
    count, last = 0, -math.inf
    for step, (loss, grad) in enumerate(records, 1):
        if rule.add(step, loss, grad):
            count += step - last > 50
            last = step
    return count


def first_fire(rule: Rule, records: list[Record], first_step: int) -> int | None:
    """The step of the first firing."""
    for step, (loss, grad) in enumerate(records, first_step):
        if rule.add(step, loss, grad):
            return step
    return None


def scenario(make: Callable[[], Rule], seed: int, event: list[Record]) -> str:
    """Fired during the event, or within 100 calm steps behind it?"""
    rng = random.Random(seed)
    before, after = list(calm(rng, 1500)), list(calm(rng, 100))
    rule = make()
    if first_fire(rule, before, 1) is not None:
        return "early"
    step = first_fire(rule, event + after, 1501)
    return "silent" if step is None else f"+{step - 1501}"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"t(3) noise of 1 % and 6 %, false episodes in {args.steps} steps")
    print("| rule | BLOOM fires at | false at 1 % | false at 6 % | one bad batch | +0.5 for 30 | µs/record |")
    print("|---|---|---|---|---|---|---|")
    for name, make in RULES.items():
        before = list(calm(random.Random(args.seed), 1500))
        bloom = first_fire(make(), before + BLOOM, BLOOM_FIRST - 1500)
        begun = time.perf_counter()
        few = episodes(make(), noise(random.Random(args.seed), args.steps, 0.01))
        each_us = (time.perf_counter() - begun) / args.steps * 1e6
        many = episodes(make(), noise(random.Random(args.seed + 1), args.steps, 0.06))
        bad = scenario(make, args.seed, [(3.2, 0.3)])
        plateau = scenario(make, args.seed, [(2.7, 0.3)] * 30)
        print(f"| {name} | {bloom or 'never'} | {few} | {many} | {bad} | {plateau} | {each_us:.1f} |", flush=True)


if __name__ == "__main__":
    main()
