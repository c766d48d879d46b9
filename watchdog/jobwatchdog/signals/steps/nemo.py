"""NeMo 2's progress printer: `Training epoch 0, iteration 1199/4999 | lr: … | reduced_train_loss: …`."""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import Signal, StepReport
from jobwatchdog.signals.steps.common import TEXT_MAX, StepState, number, whole, with_loss_memory

TRIGGERS: Final = (r"Training epoch \d+, iteration \d+/\d+ \|",)

_HEAD: Final = re.compile(r"Training epoch \d+, iteration (\d+)/(\d+) \|(.*)")


def parse(line: str, state: StepState) -> list[Signal]:
    """One record a line; `iteration` counts from 0 and restarts with each epoch, `global_step` does not."""
    head = _HEAD.search(line)
    if head is None:
        return []
    fields = {}
    for part in head.group(3).split("|"):
        key, colon, value = part.partition(":")
        if colon:
            fields[key.strip()] = value.strip()
    step = whole(fields.get("global_step"))
    loss = fields.get("reduced_train_loss") or fields.get("train_loss") or fields.get("loss")
    report = StepReport(
        framework="nemo", step=int(head.group(1)) if step is None else step, total=int(head.group(2)) + 1,
        loss=number(loss), grad_norm=number(fields.get("grad_norm")), lr=number(fields.get("lr")),
        step_time_s=number(fields.get("train_step_timing in s")), text=line[:TEXT_MAX],
    )  # fmt: skip
    return [with_loss_memory(report, state)]
