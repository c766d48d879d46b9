"""Megatron-LM, Megatron-DeepSpeed and their forks: fields between bars, printed by the last rank.

A NaN loss makes the loss field vanish, so an absent loss is a fact of its own.
"""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import Signal, StepReport
from jobwatchdog.signals.steps.common import TEXT_MAX, StepState, number, whole, with_loss_memory

TRIGGERS: Final = (r"iteration +\d+/ *\d+ *\| *consumed ",)

_HEAD: Final = re.compile(r"iteration\s+(\d+)/\s*(\d+)\s*\|(.*)", re.DOTALL)
_TIME_S: Final = {"elapsed time per iteration (ms)": 1e-3, "elapsed time per iteration (s)": 1.0}
_NOT_THE_LOSS: Final = ("scale", "load_balancing", "z_loss", "aux", "mtp", "seq_load", "global_load", "value")


def parse(line: str, state: StepState) -> list[Signal]:
    """One record a line."""
    head = _HEAD.search(line)
    if head is None:
        return []
    fields = dict(_fields(head.group(3)))
    whole_record = line.rstrip().endswith("|") and "number of skipped iterations" in fields
    report = StepReport(
        framework="megatron",
        step=int(head.group(1)),
        total=int(head.group(2)),
        loss=_loss(fields),
        grad_norm=number(fields.get("grad norm")),
        lr=number(fields.get("learning rate")),
        step_time_s=_step_time_s(fields),
        skipped=whole(fields.get("number of skipped iterations")),
        nan_count=whole(fields.get("number of nan iterations")),
        loss_scale=number(fields.get("loss scale")),
        text=line[:TEXT_MAX],
    )
    if not whole_record:  # wrapped by a terminal or a mail: absent fields say nothing
        state.last_step = report.step
        return [report]
    return [with_loss_memory(report, state)]


def _fields(rest: str) -> list[tuple[str, str]]:
    out = []
    for part in rest.split("|"):
        key, colon, value = part.partition(":")
        if colon:
            out.append((key.strip(), value.strip()))
    return out


def _loss(fields: dict[str, str]) -> float | None:
    direct = fields.get("lm loss") or fields.get("loss")
    if direct is not None:
        return number(direct)
    for key, value in fields.items():
        if "loss" in key and not any(word in key for word in _NOT_THE_LOSS):
            return number(value)
    return None


def _step_time_s(fields: dict[str, str]) -> float | None:
    for key, unit_s in _TIME_S.items():
        value = number(fields.get(key))
        if value is not None:
            return value * unit_s
    return None
