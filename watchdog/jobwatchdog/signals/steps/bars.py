"""tqdm bars (HF Trainer, Lightning, NeMo 1, ColossalAI, accelerate scripts) and the dict lines of the HF Trainer.

A bar alone proves no optimiser step: downloads, tokenisers and evaluation draw bars too. So a bar counts only
with a training loss behind it, or once a Trainer's dict line showed that the bar with this total is the Trainer's.
"""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import Phase, PhaseChanged, Signal, StepReport
from jobwatchdog.signals.steps.common import NUMBER, TEXT_MAX, StepState, number, with_loss_memory

BAR_TRIGGERS: Final = (r"(?:it|step|batch)/s[,\]]", r"s/(?:it|step|batch)[,\]]")
DICT_TRIGGERS: Final = (r"\{'(?:loss|train_runtime|grad_norm)': ",)

_BAR: Final = re.compile(
    r"\| *(?P<n>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+"
    r"(?:, *(?:(?P<rate>[\d.]+)(?P<unit>(?:it|step|batch)/s|s/(?:it|step|batch))|[^\],=]*/[^\],=]*))?"
    r"(?:, *(?P<post>[^\]]*))?\]"
)
_DESC: Final = re.compile(r"([A-Za-z][^|:\[\]]{0,60}?(?:\[?\d+/\d+\]?)?):? *(?:\d+%)?$")
_EPOCH: Final = re.compile(r"Epoch:? *\[?(\d+)")
_POST_LOSS: Final = re.compile(
    rf"(?:^|[ ,_/])(?:train_|train/|reduced_train_)?(?:[A-Za-z]+_)*[Ll]oss[=:] *({NUMBER})(?![\w.])"
)
_POST_STEP: Final = re.compile(r"(?:global_step|step)[=:] *(\d+)(?![\d.eE])")
_NOT_TRAINING: Final = re.compile(
    r"(?i)\b(?:val(?:id\w*)?|eval\w*|test\w*|predict\w*|sanity|download\w*|map|tokeni\w*|loading|filter|generat\w*)\b"
)

_DICT_LOSS: Final = re.compile(rf"'loss': '?({NUMBER})'?")
_DICT_GRAD: Final = re.compile(rf"'grad_norm': +'?({NUMBER})'?")
_DICT_LR: Final = re.compile(rf"'learning_rate': '?({NUMBER})'?")


def parse_bar(line: str, state: StepState) -> list[Signal]:
    """The last bar on the line."""
    bars = list(_BAR.finditer(line))
    if not bars:
        return []
    bar = bars[-1]
    desc, post = _description(line, bar), bar.group("post") or ""
    if _NOT_TRAINING.search(desc) or ("val_loss=" in post and "train" not in post and " loss=" not in f" {post}"):
        return []
    step, total = int(bar.group("n")), int(bar.group("total"))
    loss = _POST_LOSS.search(post)
    if loss is None:
        return _silent_bar(line, desc, bar, state)
    epoch = _EPOCH.search(desc)
    said = _POST_STEP.search(post)
    if said is not None:
        step = int(said.group(1))
    elif epoch is not None:
        step += int(epoch.group(1)) * total
    if step == 0 and number(loss.group(1)) == 0.0:
        return []
    state.bar_step, state.bar_total = step, total
    state.last_step = step
    state.loss_seen.add("tqdm")
    return [
        StepReport(
            framework="tqdm", step=step, total=None if epoch else total, loss=number(loss.group(1)),
            step_time_s=_seconds(bar), text=line[bar.start() : bar.start() + TEXT_MAX],
        )
    ]  # fmt: skip


def _description(line: str, bar: re.Match[str]) -> str:
    """The words before the bar's own left edge; "" for a bar without any."""
    edge = line.rfind("|", 0, bar.start())
    found = _DESC.search(line[max(0, edge - 80) : edge].rstrip()) if edge > 0 else None
    return found.group(1) if found is not None else ""


def _silent_bar(line: str, desc: str, bar: re.Match[str], state: StepState) -> list[Signal]:
    """A bar without a loss: the step of the dict lines that follow, a report only when known to be the Trainer's."""
    if desc and not desc.startswith(("Epoch", "Training", "train", "Train", "Steps")):
        return []
    step, total = int(bar.group("n")), int(bar.group("total"))
    fresh = state.bar_step != step or state.bar_total != total
    state.bar_step, state.bar_total = step, total
    if fresh and (desc == "Steps" or state.trainer_total == total) and step > 0:
        state.last_step = step
        return [StepReport(framework="bar", step=step, total=total, step_time_s=_seconds(bar), text=line[:TEXT_MAX])]
    return []


def _seconds(bar: re.Match[str]) -> float | None:
    rate = number(bar.group("rate"))
    if not rate:
        return None
    return rate if bar.group("unit").startswith("s/") else 1.0 / rate


def parse_dict(line: str, state: StepState) -> list[Signal]:
    """`{'loss': …}` with floats (v4) or strings (v5); the step is the bar's, else the lines are counted."""
    if "'train_runtime'" in line:
        return [PhaseChanged(phase=Phase.SHUTDOWN, begin=True, step=state.last_step, text=line[:TEXT_MAX])]
    loss = _DICT_LOSS.search(line)
    grad = _DICT_GRAD.search(line)
    if loss is None and grad is None:
        return []
    state.dict_count += 1
    step = state.bar_step if state.bar_step is not None else state.dict_count
    state.trainer_total = state.bar_total
    rate = _DICT_LR.search(line)
    report = StepReport(
        framework=_dict_framework(line), step=step, total=state.bar_total,
        micro_step=state.dict_count if state.bar_step is not None else None,
        loss=number(loss.group(1)) if loss else None, grad_norm=number(grad.group(1)) if grad else None,
        lr=number(rate.group(1)) if rate else None, text=line[:TEXT_MAX],
    )  # fmt: skip
    return [with_loss_memory(report, state)]


def _dict_framework(line: str) -> str:
    """Lines of reinforcement learning carry rewards; their loss may well be zero or negative."""
    return "trl" if "'reward" in line or "'kl'" in line or "advantages'" in line else "huggingface"
