"""Clocks: what lasts is a fault, what flashes or is normal under load is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import jobwatchdog
from jobwatchdog.detectors.base import Detector
from jobwatchdog.detectors.registry import build
from jobwatchdog.model import Finding, GpuSample, JobId, Kind, Origin

FOLDER = Path(jobwatchdog.__file__).parent / "detectors"
NAMES = ("clock_throttle", "power_brake", "straggler", "thermal_throttle")


def detectors() -> list[Detector]:
    return build(JobId("job"), {name: (FOLDER / name / "detector.yaml").read_text() for name in NAMES})


def feed(samples: list[GpuSample], into: list[Detector] | None = None) -> list[Finding]:
    into = into or detectors()
    return [f for s in samples for d in into for f in d.observe(s, s.t_s or 0.0)]


def sample(t_s: float | None, reasons: int | None, gpu: str = "0000:c5:00.0", **values: float) -> GpuSample:
    bare = GpuSample(gpu=gpu, reasons=reasons, t_s=t_s, origin=Origin(node="node-3"))
    return replace(bare, **values)  # type: ignore[arg-type]  # the keywords of the tests are its float fields


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (0x48, Kind.THERMAL_THROTTLE),
        (0x20, Kind.THERMAL_THROTTLE),
        (0x24, Kind.THERMAL_THROTTLE),
        (0x88, Kind.POWER_BRAKE),
    ],
)
def test_a_single_report_with_an_active_reason_counts(reasons: int, kind: Kind) -> None:
    """With moderate confidence: it has no duration."""
    (finding,) = feed([sample(None, reasons, sm_clock_mhz=382.0, sm_clock_max_mhz=1530.0)])
    assert (finding.kind, finding.suspects.gpus, finding.suspects.nodes) == (kind, ("0000:c5:00.0",), ("node-3",))
    assert 0.7 <= finding.confidence < 0.9
    assert finding.measures["clock_ratio"] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x5, 0x100])
def test_healthy_reasons_are_silent(reasons: int) -> None:
    """Idle, application clocks, and the power cap of full load."""
    assert feed([sample(None, reasons, sm_clock_mhz=1755.0, sm_clock_max_mhz=1980.0)]) == []
    assert feed([sample(float(t), reasons, sm_clock_mhz=1755.0, util_pct=99.0) for t in range(600)]) == []


def test_a_flash_among_samples_is_silent() -> None:
    """Two of sixty seconds, during a change of performance state."""
    assert feed([sample(float(t), 0x8 if t in (20, 21) else 0) for t in range(60)]) == []


def test_a_slowdown_that_lasts_becomes_certain_and_ends() -> None:
    """First told after seconds, then with confidence after five minutes, then taken back."""
    hot = [sample(float(t), 0x40, temp_c=90.0) for t in range(0, 400, 5)]
    cool = [sample(float(t), 0, temp_c=60.0) for t in range(400, 1200, 5)]
    found = feed([*hot, *cool])
    assert [(f.kind, f.recovered) for f in found] == [(Kind.THERMAL_THROTTLE, r) for r in (False, False, True)]
    assert found[0].confidence < found[1].confidence
    assert found[1].measures["duration_s"] >= 300
    assert found[1].measures["temp_c"] == 90.0


def test_a_clock_below_its_peers_under_load_is_told() -> None:
    """No reason is given, no table of models needed."""
    samples = []
    for t in range(60):
        for gpu in range(8):
            clock = 900.0 if gpu == 5 else 1755.0
            samples.append(sample(float(t), 0x4, gpu=f"0000:0{gpu}:00.0", sm_clock_mhz=clock, util_pct=99.0))
    (finding,) = feed(samples)
    assert (finding.kind, finding.suspects.gpus) == (Kind.CLOCK_THROTTLE, ("0000:05:00.0",))


def straggle(rank: int, mhz: float) -> list[GpuSample]:
    return [
        GpuSample(gpu=f"rank {rank}", sm_clock_mhz=mhz, sm_clock_max_mhz=1980.0),
        GpuSample(gpu="rank 0", sm_clock_mhz=1980.0, sm_clock_max_mhz=1980.0),
    ]


def test_the_same_slow_rank_three_times_is_a_straggler() -> None:
    """Once."""
    (finding,) = feed([s for _ in range(6) for s in straggle(3, 1200.0)])
    assert (finding.kind, finding.suspects.ranks) == (Kind.STRAGGLER, (3,))


def test_another_slowest_rank_each_time_is_none() -> None:
    """Someone always is."""
    assert feed([s for rank in range(1, 9) for s in straggle(rank, 1200.0)]) == []
    assert feed([s for _ in range(6) for s in straggle(3, 1900.0)]) == []
