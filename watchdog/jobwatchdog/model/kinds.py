"""The vocabulary: kinds of incident, cause classes, and what a plain restart would do about each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A kind of incident; the values are the words of policies, JSON, metrics and the corpus."""

    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    HANG_NO_OUTPUT = "hang_no_output"
    STRAGGLER = "straggler"
    RANK_CRASH = "rank_crash"
    CUDA_OOM = "cuda_oom"
    OOM_AFTER_CHECKPOINT = "oom_after_checkpoint"
    HOST_OOM = "host_oom"
    CUDA_ERROR = "cuda_error"
    XID = "xid"
    ECC = "ecc"
    GPU_LOST = "gpu_lost"
    NVLINK = "nvlink"
    THERMAL_THROTTLE = "thermal_throttle"
    POWER_BRAKE = "power_brake"
    CLOCK_THROTTLE = "clock_throttle"
    IB_LINK = "ib_link"
    SM_FAILURE = "sm_failure"
    LOSS_SPIKE = "loss_spike"
    LOSS_NAN = "loss_nan"
    DATALOADER = "dataloader"
    CHECKPOINT_FAILURE = "checkpoint_failure"
    STORAGE = "storage"
    CONFIG_OR_CODE_BUG = "config_or_code_bug"
    PREEMPTION = "preemption"
    SLURM_NODE_FAIL = "slurm_node_fail"
    SLURM_TIMEOUT = "slurm_timeout"
    RENDEZVOUS = "rendezvous"
    UNKNOWN_FAILURE = "unknown_failure"


class CauseClass(StrEnum):
    """Whose fault; only HARDWARE may taint a node."""

    HARDWARE = "hardware"
    INFRASTRUCTURE = "infrastructure"
    APPLICATION = "application"
    UNKNOWN = "unknown"


class RestartHelps(StrEnum):
    """Would a plain restart on the same machines get further?"""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


@dataclass(frozen=True, slots=True)
class KindDefaults:
    """What holds for a kind when the evidence does not say otherwise."""

    cause_class: CauseClass
    restart_helps: RestartHelps


_H, _I, _A, _U = CauseClass.HARDWARE, CauseClass.INFRASTRUCTURE, CauseClass.APPLICATION, CauseClass.UNKNOWN
_YES, _NO, _MAYBE = RestartHelps.YES, RestartHelps.NO, RestartHelps.MAYBE

KIND_DEFAULTS: dict[Kind, KindDefaults] = {
    Kind.NCCL_TIMEOUT: KindDefaults(_U, _MAYBE),
    Kind.NCCL_ERROR: KindDefaults(_I, _MAYBE),
    Kind.HANG_NO_OUTPUT: KindDefaults(_U, _MAYBE),
    Kind.STRAGGLER: KindDefaults(_H, _NO),
    Kind.RANK_CRASH: KindDefaults(_U, _MAYBE),
    Kind.CUDA_OOM: KindDefaults(_A, _NO),
    Kind.OOM_AFTER_CHECKPOINT: KindDefaults(_A, _MAYBE),
    Kind.HOST_OOM: KindDefaults(_A, _NO),
    Kind.CUDA_ERROR: KindDefaults(_U, _MAYBE),
    Kind.XID: KindDefaults(_H, _MAYBE),
    Kind.ECC: KindDefaults(_H, _NO),
    Kind.GPU_LOST: KindDefaults(_H, _NO),
    Kind.NVLINK: KindDefaults(_H, _NO),
    Kind.THERMAL_THROTTLE: KindDefaults(_H, _NO),
    Kind.POWER_BRAKE: KindDefaults(_H, _NO),
    Kind.CLOCK_THROTTLE: KindDefaults(_H, _NO),
    Kind.IB_LINK: KindDefaults(_H, _MAYBE),
    Kind.SM_FAILURE: KindDefaults(_I, _NO),
    Kind.LOSS_SPIKE: KindDefaults(_A, _MAYBE),
    Kind.LOSS_NAN: KindDefaults(_A, _NO),
    Kind.DATALOADER: KindDefaults(_A, _MAYBE),
    Kind.CHECKPOINT_FAILURE: KindDefaults(_I, _NO),
    Kind.STORAGE: KindDefaults(_I, _NO),
    Kind.CONFIG_OR_CODE_BUG: KindDefaults(_A, _NO),
    Kind.PREEMPTION: KindDefaults(_I, _YES),
    Kind.SLURM_NODE_FAIL: KindDefaults(_H, _YES),
    Kind.SLURM_TIMEOUT: KindDefaults(_I, _YES),
    Kind.RENDEZVOUS: KindDefaults(_I, _NO),
    Kind.UNKNOWN_FAILURE: KindDefaults(_U, _MAYBE),
}
