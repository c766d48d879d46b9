"""Spikes are told from noise, and losses that are no numbers from loss scaling at work."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import jobwatchdog
from jobwatchdog.detectors.base import Detector
from jobwatchdog.detectors.loss_nan.detector import build as build_nan
from jobwatchdog.detectors.loss_spike.detector import build as build_spike
from jobwatchdog.detectors.registry import parse_document
from jobwatchdog.model import Finding, Job, JobId, Kind, Origin, RestartHelps, StepReport

JOB = JobId("job")
FOLDER = Path(jobwatchdog.__file__).parent / "detectors"


def thresholds(name: str) -> dict[str, float]:
    document = parse_document((FOLDER / name / "detector.yaml").read_text())
    return {key: t.value for key, t in document.thresholds.items()}


def spike() -> Detector:
    return build_spike(JOB, thresholds("loss_spike"))


def nan() -> Detector:
    return build_nan(JOB, thresholds("loss_nan"))


Record = tuple[float | None, float | None]


def feed(
    detector: Detector, records: Iterable[Record], first: int = 1, every: int = 1, framework: str = "x"
) -> list[Finding]:
    out = []
    for i, (loss, grad) in enumerate(records):
        step = first + i * every
        out += detector.observe(StepReport(framework=framework, step=step, loss=loss, grad_norm=grad), 100.0 + step)
    return out


def losses(*values: float) -> list[Record]:
    return [(value, None) for value in values]


def student_t3(rng: random.Random) -> float:
    return rng.gauss(0, 1) / math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3)


def calm(n: int, seed: int = 1, share: float = 0.007) -> list[Record]:
    rng = random.Random(seed)
    return [(2.2 * (1 + share * student_t3(rng)), 0.25 * math.exp(0.1 * rng.gauss(0, 1))) for _ in range(n)]


BLOOM: Sequence[Record] = [
    (2.199, 0.242), (2.220, 0.947), (2.595, 2.39), (2.242, 15.9), (2.345, 145.0),
    (5.098, 960.0), (3.492, 353.0), (3.213, 379.0), (2.805, 650.0),
]  # fmt: skip


# ---- spikes -----------------------------------------------------------------------------------------


def test_blooms_spike_is_told_by_its_gradient_norm_before_the_loss_leaps() -> None:
    """The norm leads by minutes."""
    found = feed(spike(), [*calm(1500), *BLOOM], first=29714)
    first = found[0]
    assert (first.onset_step, first.measures["steps_since_onset"]) == (31215, 1.0)
    assert first.measures["loss"] < 3.0, "the loss has not leapt yet"
    assert max(f.confidence for f in found) >= 0.9


def test_a_healed_spike_says_that_a_rollback_is_waste() -> None:
    """Back at its level for twenty steps."""
    found = feed(spike(), [*calm(300), *BLOOM, *calm(40, seed=2)])
    assert found[-1].recovered
    assert found[-1].restart_helps is RestartHelps.NO
    assert not any(f.recovered for f in found[:-1])


def test_a_spike_that_stays_is_told_again_after_a_hundred_steps() -> None:
    """Only then is a rollback worth its price; the level itself becomes the new one after 64 records."""
    found = feed(spike(), [*calm(300), *[(6.0, 0.3)] * 40], first=1000, every=10)
    assert [f.restart_helps for f in found] == [RestartHelps.MAYBE] * 2
    assert "still not back" in found[-1].summary


def test_noise_with_heavy_tails_is_no_spike() -> None:
    """Student t with three degrees of freedom; Gaussian noise would prove nothing."""
    assert [f.summary for f in feed(spike(), calm(12_000, seed=3, share=0.01))] == []
    assert [f.summary for f in feed(spike(), calm(12_000, seed=4, share=0.06))] == []


@pytest.mark.parametrize(
    "event",
    [
        [(3.2, 0.3)],  # one bad batch
        [(2.2, 11140.0), (2.2, 0.25), (2.2, 0.25)],  # one norm, clipped
        [(2.0, 0.2)] * 30,  # a fall
    ],
)
def test_lookalikes_in_a_long_run_stay_silent(event: list[Record]) -> None:
    """One record, or a change for the better."""
    assert feed(spike(), [*calm(300), *event, *calm(60, seed=5)]) == []


@pytest.mark.parametrize(
    "values",
    [
        (2.775923, 2.772822, 2.768131, 7.343709, 8.715872, 7.654131, 7.192470, 6.849044),
        (2.665295, 2.667121, 4.374269, 4.365822, 4.391485, 4.404639, 4.398458, 4.096038),
        (*[2.2, 2.1, 2.15, 2.12, 2.09, 2.11, 2.08, 2.05] * 3, 24.9, 25.2, 24.1),
    ],
)
def test_a_short_excerpt_is_enough_for_a_great_leap(values: tuple[float, ...]) -> None:
    """A job that broke after 25 steps has no baseline of 64."""
    found = feed(spike(), losses(*values), first=17060)
    assert found
    assert found[0].kind is Kind.LOSS_SPIKE
    assert found[0].confidence >= 0.7


def test_a_short_excerpt_that_swings_is_judged_at_its_end() -> None:
    """Weakly: nobody knows what it was before."""
    detector = spike()
    assert feed(detector, losses(4.7002, 5.5483, 2.3724, 3.4107, 2.6863, 5.5921), first=463) == []
    (finding,) = detector.log_ended(0.0)
    assert finding.confidence < 0.7


@pytest.mark.parametrize(
    "values",
    [
        (1.46, 1.28, 1.60, 1.14, 1.54, 1.61, 1.36, 1.36, 1.51),
        (10.9, 10.2, 9.1, 8.3, 7.7, 7.2, 6.9, 7.1, 6.6, 6.4),
        (11.6, 7.4, 7.1, 6.7, 8.9, 6.3, 6.1, 5.8),
        (0.02, 0.03, 0.01, 0.09, 0.02, 0.12, 0.11, 0.02),
        (0.0, -0.0, 0.0001, -0.0002, 0.0, 0.001),
    ],
)
def test_a_short_excerpt_of_a_healthy_run_stays_silent(values: tuple[float, ...]) -> None:
    """Noise of a fine-tune, warm-up, tiny losses, losses around zero."""
    detector = spike()
    assert feed(detector, losses(*values)) == []
    assert detector.log_ended(0.0) == []


def test_reinforcement_learning_has_no_spikes_of_this_kind() -> None:
    """A policy loss around zero may do as it likes."""
    assert feed(spike(), [*losses(*[0.01] * 100), *losses(*[3.0] * 10)], framework="verl") == []


def test_several_ranks_printing_one_step_are_one_record() -> None:
    """Otherwise one bad batch would be confirmed by its own copies."""
    detector = spike()
    feed(detector, calm(300))
    found = []
    for rank in range(4):
        report = StepReport(framework="x", step=301, loss=3.4, origin=Origin(rank=rank))
        found += detector.observe(report, 500.0)
    assert found == []


def test_a_new_attempt_is_another_series() -> None:
    """Repeated steps, and a norm that is high after a resume."""
    detector = spike()
    feed(detector, calm(300))
    detector.job_changed(Job(id=JOB, launcher="local", attempt=1))
    assert feed(detector, [(5.0, 1.0)] * 3, first=200) == []


# ---- NaN --------------------------------------------------------------------------------------------


def test_one_nan_loss_is_enough() -> None:
    """It never heals by itself, and the step is the onset."""
    (finding,) = feed(nan(), [*calm(10), (math.nan, 0.3), (math.nan, 0.3)])
    assert (finding.kind, finding.onset_step) == (Kind.LOSS_NAN, 11)


def test_a_vanished_loss_is_a_nan() -> None:
    """Megatron drops the field."""
    detector = nan()
    detector.observe(StepReport(framework="megatron", step=1, loss=2.0, grad_norm=0.4, loss_scale=1.0), 1.0)
    report = StepReport(framework="megatron", step=2, loss_missing=True, grad_norm=math.nan, loss_scale=1.0, skipped=0)
    assert [f.onset_step for f in detector.observe(report, 2.0)] == [2]


def test_counted_nan_iterations_are_believed() -> None:
    """The framework says so itself."""
    assert nan().observe(StepReport(framework="megatron", step=2, loss=2.0, nan_count=3), 2.0)


def test_a_scaled_overflow_is_no_nan() -> None:
    """One skipped step with a non-finite norm is how fp16 works; several in a row are not."""
    detector = nan()
    records: list[Record] = [(2.0, 0.3), (2.0, math.inf), (2.0, 0.3), (2.0, math.nan), (2.0, 0.3)]
    assert feed(detector, records, framework="huggingface") == []
    assert feed(detector, [(0.0, math.nan)], first=6, framework="huggingface")


def overflow(step: int, scale: float) -> StepReport:
    return StepReport(framework="overflow", step=step, skipped=1, loss_scale=scale)


def test_a_loss_scale_that_settles_is_silent() -> None:
    """From 2^32 down to 2^15 takes seventeen skipped steps."""
    detector = nan()
    found = [f for i in range(17) for f in detector.observe(overflow(i, 2.0 ** (31 - i)), float(i))]
    assert found == []


def test_a_loss_scale_at_its_end_is_told_once() -> None:
    """Nothing is left to halve."""
    detector = nan()
    found = [f for i in range(12) for f in detector.observe(overflow(i, max(1.0, 2.0 ** (6 - i))), float(i))]
    assert [f.kind for f in found] == [Kind.LOSS_NAN]


def test_a_loss_that_is_finite_again_takes_it_back() -> None:
    """Twenty records in a row."""
    found = feed(nan(), [*calm(5), (math.nan, 0.3), *calm(25)])
    assert [f.recovered for f in found] == [False, True]
