"""Signals: one fact each, with a time and an origin. Sources and scanners make them, detectors read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from jobwatchdog.model.kinds import CauseClass, Kind, RestartHelps

JobId = NewType("JobId", str)
NO_JOB = JobId("")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a signal was seen. `line` counts from 1 within `file`; None means not known, never zero."""

    file: str | None = None
    line: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    pid: int | None = None


NOWHERE = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Base of all signals.

    `t_s` is the time that the source itself states (Unix seconds), None where it states none.
    The time of arrival travels in the event that carries the signal.
    """

    job: JobId = NO_JOB
    t_s: float | None = None
    origin: Origin = NOWHERE


class Role(StrEnum):
    """What a matched line means for the verdict."""

    CAUSE = "cause"  # may be the root: a fault of its own
    SYMPTOM = "symptom"  # fallout of something else, a verdict only when nothing better is known
    CONTEXT = "context"  # adds evidence (a rank, a node, a sequence number), never an incident by itself
    BENIGN = "benign"  # explains alarming lines around it: user cancel, clean end, planned exit


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatch(Signal):
    """A log line matched by a signature of a catalogue.

    `fields` are the signature's named captures. `text` is the line without colour codes, cut at 2,000
    characters. `kind` is None for CONTEXT and BENIGN.
    """

    signature: str
    kind: Kind | None
    role: Role
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    cause_class: CauseClass | None = None
    restart_helps: RestartHelps | None = None
    confidence: float = 0.9
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport(Signal):
    """One optimiser step as a framework printed it. None = the line does not carry the field.

    `loss_missing` is True where this framework's lines carried a loss before and this one does not
    (Megatron drops the field when it is NaN). Times in seconds, `nan`/`inf` are kept as floats.
    """

    framework: str
    step: int
    total: int | None = None
    micro_step: int | None = None
    loss: float | None = None
    loss_missing: bool = False
    grad_norm: float | None = None
    lr: float | None = None
    step_time_s: float | None = None
    data_time_s: float | None = None
    skipped: int | None = None
    nan_count: int | None = None
    loss_scale: float | None = None
    text: str = ""


class Phase(StrEnum):
    """What a job is doing; each phase has its own idea of how long silence is normal."""

    STARTUP = "startup"  # launched, no step yet
    TRAIN = "train"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    RESTARTED = "restarted"  # an attempt of ours, no step yet
    SHUTDOWN = "shutdown"  # training said it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Signal):
    """The job said that it enters (`begin`) or leaves a phase. `path` is a checkpoint's, where named."""

    phase: Phase
    begin: bool
    step: int | None = None
    path: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSeen(Signal):
    """A rank's output grew; says "alive" without saying what. Sent at most once a second a stream."""

    n_bytes: int


class ProcState(StrEnum):
    """A process as the operating system shows it."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    DISK_SLEEP = "disk_sleep"  # D: cannot be killed until the I/O returns
    STOPPED = "stopped"  # T: cannot honour SIGTERM
    ZOMBIE = "zombie"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen(Signal):
    """State of one rank's process (`origin.rank`, `origin.pid`), sampled. `cpu_s` is cumulative CPU time."""

    state: ProcState
    cpu_s: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None


class JobPhase(StrEnum):
    """The launcher's view of the job."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # its user ended it: never an incident, never undone
    UNKNOWN = "unknown"  # cannot be seen; never "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStateSeen(Signal):
    """What the launcher says of the job's attempt now; exit code and signal where it ended."""

    state: JobPhase
    attempt: int = 0
    exit_code: int | None = None
    exit_signal: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample(Signal):
    """One reading of one GPU. `reasons` is NVML's clocks-event bit mask (facts: 0x8 HW slowdown,
    0x20 SW thermal, 0x40 HW thermal, 0x80 power brake, 0x4 SW power cap, 0x1 idle)."""

    gpu: str
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    temp_c: float | None = None
    temp_margin_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    util_pct: float | None = None
    reasons: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSeen(Signal):
    """Innermost-first frames of one rank's main thread, from py-spy or a log."""

    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLost(Signal):
    """A source can no longer be read. Missing evidence is `unknown`; it is never evidence of a fault."""

    source: str
    reason: str
