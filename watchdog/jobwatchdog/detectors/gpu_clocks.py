"""Clock-event reasons of GPUs over time, shared by the three throttle detectors.

NVML's bits: 0x8 hardware slowdown, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake, 0x4 power cap,
0x1 idle. Words of several bits are combinations: bits are tested, never equality.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.detectors.moments import seen_at
from jobwatchdog.model import Evidence, Finding, GpuSample, JobId, LogMatch, RestartHelps, Signal, Suspects

IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
_SAMPLES_MAX = 1024
_GPUS_MAX = 4096


@dataclass(slots=True)
class GpuTrack:
    """What one GPU's samples have shown: latest values, and when it was slowed down within the window."""

    gpu: str
    node: str | None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    reasons: int | None = None
    util_pct: float | None = None
    samples: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))
    since_s: float | None = None
    told: bool = False
    certain: bool = False
    calm: int = 0
    evidence: deque[Evidence] = field(default_factory=lambda: deque(maxlen=3))

    def take(self, sample: GpuSample) -> None:
        """Keeps the newest of each value; a report comes in parts."""
        for name, value in (
            ("clock_mhz", sample.sm_clock_mhz),
            ("clock_max_mhz", sample.sm_clock_max_mhz),
            ("temp_c", sample.temp_c),
            ("power_w", sample.power_w),
            ("reasons", sample.reasons),
            ("util_pct", sample.util_pct),
        ):
            if value is not None:
                setattr(self, name, value)

    def clock_ratio(self) -> float | None:
        """Clock against its own maximum."""
        if self.clock_mhz is None or not self.clock_max_mhz:
            return None
        return self.clock_mhz / self.clock_max_mhz


class ThrottleDetector(SignatureDetector):
    """Base: subclasses say which samples count as slowed down, and why."""

    listens = (GpuSample, LogMatch)

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._gpus: dict[tuple[str, str], GpuTrack] = {}

    def slowed(self, track: GpuTrack, others: Mapping[tuple[str, str], GpuTrack]) -> str | None:
        """Return in words why the GPU counts as slowed down now, None when it does not."""
        raise NotImplementedError

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take a reading, or a matched line."""
        if not isinstance(signal, GpuSample):
            return super().observe(signal, now_s)
        if signal.gpu.startswith("rank "):  # extremes over the whole job; the straggler detector reads them
            return []
        key = (signal.origin.node or "", signal.gpu)
        track = self._gpus.get(key)
        if track is None:
            if len(self._gpus) >= _GPUS_MAX:
                return []
            track = self._gpus[key] = GpuTrack(signal.gpu, signal.origin.node)
        track.take(signal)
        words = self.slowed(track, self._gpus)
        return self._fold(track, signal, words, now_s)

    def _fold(self, track: GpuTrack, sample: GpuSample, words: str | None, now_s: float) -> list[Finding]:
        at_s = sample.t_s
        if words is not None:
            place = sample.origin
            track.evidence.append(Evidence(text=sample.text or words, file=place.file, line=place.line, t_s=at_s))
            track.calm = 0
            if track.since_s is None:
                track.since_s = seen_at(at_s, now_s)
        if at_s is None:
            return self._without_time(track, words)
        track.samples.append((at_s, words is not None))
        while track.samples and track.samples[0][0] < at_s - self.thresholds["window_s"]:
            track.samples.popleft()
        return self._over_time(track, words, at_s)

    def _without_time(self, track: GpuTrack, words: str | None) -> list[Finding]:
        """One report without a time of its own: slowed down is slowed down, with moderate confidence."""
        if words is None or track.told:
            return []
        track.told = True
        return [self._finding_of(track, words, 0.75, None)]

    def _over_time(self, track: GpuTrack, words: str | None, at_s: float) -> list[Finding]:
        """Samples with times: the share of them over the window decides, so that a flash is no fault."""
        th = self.thresholds
        slowed = sum(1 for _, bad in track.samples if bad)
        span_s = at_s - track.samples[0][0]
        if words is None:
            return self._calmer(track, slowed, at_s)
        duration_s = at_s - (track.since_s if track.since_s is not None else at_s)
        enough = len(track.samples) >= th["samples_min"] and span_s >= th["span_min_s"]
        if not enough or slowed < th["duty_min"] * len(track.samples):
            return []
        certain = duration_s >= th["certain_s"]
        if track.told and (track.certain or not certain):
            return []
        track.told, track.certain = True, certain
        return [self._finding_of(track, words, 0.95 if certain else 0.8, duration_s)]

    def _calmer(self, track: GpuTrack, slowed: int, at_s: float) -> list[Finding]:
        track.calm += 1
        if track.calm < self.thresholds["samples_min"] or slowed >= 0.5 * len(track.samples):
            return []
        was_told, track.told, track.certain, track.since_s = track.told, False, False, None
        if not was_told:
            return []
        return [
            Finding(
                kind=self.kind, job=self.job, detector=self.id, suspects=self._suspects(track), recovered=True,
                restart_helps=RestartHelps.NO, summary=f"GPU {track.gpu or '?'} runs free again", onset_s=at_s,
            )
        ]  # fmt: skip

    def _finding_of(self, track: GpuTrack, words: str, confidence: float, duration_s: float | None) -> Finding:
        ratio = track.clock_ratio()
        measured = {
            "clock_ratio": ratio,
            "duration_s": duration_s,
            "temp_c": track.temp_c,
            "sm_clock_mhz": track.clock_mhz,
            "power_w": track.power_w,
        }
        clock = f", SM clock {track.clock_mhz:.0f} MHz" if track.clock_mhz is not None else ""
        return Finding(
            kind=self.kind,
            job=self.job,
            detector=self.id,
            confidence=confidence,
            suspects=self._suspects(track),
            evidence=tuple(track.evidence),
            onset_s=track.since_s,
            measures={name: value for name, value in measured.items() if value is not None},
            summary=f"GPU {track.gpu or '?'}: {words}{clock}",
        )

    @staticmethod
    def _suspects(track: GpuTrack) -> Suspects:
        return Suspects(nodes=(track.node,) if track.node else (), gpus=(track.gpu,) if track.gpu else ())
