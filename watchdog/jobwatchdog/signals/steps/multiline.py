"""Formats whose record takes several lines: composer / llm-foundry and OLMo-core.

The head names the step, indented lines follow with one value each. The report is given out once, at the loss
line; a record without a loss is given out when the next head comes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from jobwatchdog.model import Phase, PhaseChanged, Signal, StepReport
from jobwatchdog.signals.steps.common import NUMBER, TEXT_MAX, StepState, number, with_loss_memory

COMPOSER_TRIGGERS: Final = (
    r"\[batch=\d+(?:/\d+)?\]",
    r"\bTrain (?:loss/train/total|loss/train|metrics/train/loss|l2_norm/grad/global|LanguageCrossEntropy): ",
    r"\[Eval batch=\d+/\d+\]",
)
OLMO_TRIGGERS: Final = (
    r"\[step=\d+/\d+",
    r"\b(?:train/(?:CE loss|CrossEntropyLoss)|optim/total[ _]grad[ _]norm)=",
)

_BATCH: Final = re.compile(r"\[batch=(\d+)(?:/(\d+))?\]")
_OLMO_STEP: Final = re.compile(r"\[step=(\d+)/(\d+)")
_LOSS: Final = re.compile(
    rf"(?:Train (?:loss/train(?:/total)?|metrics/train/loss): *|train/(?:CE loss|CrossEntropyLoss)=)({NUMBER})"
)
_GRAD: Final = re.compile(rf"(?:l2_norm/grad/global: *|optim/total[ _]grad[ _]norm=)({NUMBER})")
_EVAL: Final = re.compile(r"\[Eval batch=(\d+)/(\d+)\]")


def parse_composer(line: str, state: StepState) -> list[Signal]:
    """`[batch=1200/500000]:` then ` Train loss/train/total: 2.4187`."""
    evaluation = _EVAL.search(line)
    if evaluation is not None:
        return _eval_batch(int(evaluation.group(1)), int(evaluation.group(2)), line, state)
    head = _BATCH.search(line)
    if head is not None:
        return _new_record(state, "composer", int(head.group(1)), head.group(2), line)
    return _value(line, state)


def parse_olmo(line: str, state: StepState) -> list[Signal]:
    """`[step=1200/500000,epoch=1,eta=…]` then `    train/CE loss=2.419`."""
    head = _OLMO_STEP.search(line)
    if head is not None:
        given = _new_record(state, "olmo-core", int(head.group(1)), head.group(2), line)
        return given + _value(line[head.end() :], state)
    return _value(line, state)


def _new_record(state: StepState, framework: str, step: int, total: str | None, line: str) -> list[Signal]:
    """Opens a record; the one before, if it never showed a loss, is given out as it is."""
    before = state.record
    state.record = StepReport(
        framework=framework, step=step, total=int(total) if total else None, text=line.strip()[:TEXT_MAX]
    )
    state.record_left = 1
    if before is None or before.step == step:
        return []
    return [with_loss_memory(before, state)]


def _value(line: str, state: StepState) -> list[Signal]:
    found = _GRAD.search(line)
    if found is not None:
        return _grad(number(found.group(1)), line, state)
    found = _LOSS.search(line)
    if found is None or state.record is None or state.record_left == 0:
        return []
    report = replace(state.record, loss=number(found.group(1)), text=f"{state.record.text} {line.strip()}"[:TEXT_MAX])
    state.record, state.record_left = None, 0
    return [with_loss_memory(report, state)]


def _grad(value: float | None, line: str, state: StepState) -> list[Signal]:
    """Joins the open record; behind the loss line it is a report of its own for the same step."""
    if state.record is not None:
        state.record = replace(state.record, grad_norm=value)
        return []
    if state.last_step is None:
        return []
    framework = "olmo-core" if "=" in line else "composer"
    return [StepReport(framework=framework, step=state.last_step, grad_norm=value, text=line.strip()[:TEXT_MAX])]


def _eval_batch(batch: int, total: int, line: str, state: StepState) -> list[Signal]:
    if batch >= total:
        state.in_eval = False
        return [PhaseChanged(phase=Phase.EVAL, begin=False, step=state.last_step, text=line[:TEXT_MAX])]
    if state.in_eval:
        return []
    state.in_eval = True
    return [PhaseChanged(phase=Phase.EVAL, begin=True, step=state.last_step, text=line[:TEXT_MAX])]
