"""Scripts of no known framework: `step 12 loss 1.23`, `Iter:[3/200], … Loss: 0.21`, JSON lines.

Asked last: a line that a named format understands is never read here. It wants both a step and a loss in one
line, with the words next to their numbers, so that prose about steps and losses stays prose.
"""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import Signal, StepReport
from jobwatchdog.signals.steps.common import NUMBER, TEXT_MAX, StepState, number, with_loss_memory

_STEP_WORD: Final = r"(?:global_?step|train_?step|step|iteration|iter|batch|update|num_updates)"
_LOSS_WORD: Final = r"(?:(?:train|training|lm|total|avg|per_token)[_ /])?loss"

TRIGGERS: Final = (
    rf"(?i)\b{_STEP_WORD}s?[\"']?\]?[ :=#]{{1,3}}[\"'\[]?\d+.*\b(?:loss|[a-z]_loss)[\"']?[ :=]{{1,3}}[\"']?[-+]?(?:\d|nan\b|inf\b)",
    r"(?i)\bEpoch:? *\[?\d+\]?[ \[]+\d+/\d+.*\bloss[ :=]{1,3}[-+]?(?:\d|nan\b|inf\b)",
    r"(?i)\"(?:train_?)?loss\": ?\"?(?:[-+]?\d|nan\b|inf).*\"(?:global_?|num_)?(?:step|iter|iteration|updates)s?\": ?\"?\d",
)

_STEP: Final = re.compile(
    rf"\b{_STEP_WORD}s?[\"']?\]?[ :=#]{{1,3}}[\"'\[]?(?P<step>\d+)(?![\d.])(?: *(?:/|of) *(?P<total>\d+))?"
)
_EPOCH: Final = re.compile(r"\bepoch:? *\[?(?P<epoch>\d+)(?:/\d+)?\]?|^\s*\[(?P<bare>\d+)/\d+\] iter\b")
_EPOCH_STEP: Final = re.compile(r"\bepoch:? *\[?(?P<epoch>\d+)\]?[ \[]+(?P<step>\d+)/(?P<total>\d+)")
_LOSS: Final = re.compile(
    rf"(?<![\w/]){_LOSS_WORD}[\"']?[ :=]{{1,3}}[\"']?(?P<loss>{NUMBER})(?![\w])(?: *\((?P<mean>{NUMBER})\))?"
)
_GRAD: Final = re.compile(rf"\b(?:grad(?:ient)?[ _-]?norm|gnorm)[\"']?[ :=]{{1,3}}[\"']?({NUMBER})")
_TIME: Final = re.compile(rf"\b(?:step|iter|batch)[_ ]?time[\"']?[ :=]{{1,3}}({NUMBER}) ?(ms|s)\b")
_NAMED_SHAPE: Final = re.compile(  # what the named formats' own triggers find among the lines that hit ours
    r"\biter \d+(?:: loss| step \d)|\bstep:(?:\d+(?:/\d+ | - )| +\d+ +loss: )|\| *consumed |training epoch \d|"
    r"iteration: +\d+ / |(?:it|step|batch)/s[,\]]|s/(?:it|step|batch)[,\]]|iter time \(s\)|\{'loss': |:::mllog"
)
_NOT_TRAINING: Final = re.compile(r"\b(?:val(?:id\w*)?|eval\w*|test\w*|dev|best|warning|error|overflow)[ _:/]")


def parse(line: str, state: StepState) -> list[Signal]:
    """A step and a loss, each beside its word, in a line that no named format knows."""
    low = line.lower()  # once: ignoring case in each pattern costs several times as much
    if len(low) > 4_000 or _NAMED_SHAPE.search(low) or _NOT_TRAINING.search(low):
        return []
    place = _EPOCH_STEP.search(low) or _STEP.search(low)
    loss = _LOSS.search(low)
    if place is None or loss is None:
        return []
    grad = _GRAD.search(low) if "norm" in low else None
    taken = _TIME.search(low) if "time" in low else None
    total = number(place.group("total"))
    step = int(place.group("step")) + _epochs_before(low, total)
    report = StepReport(
        framework="generic-epoch" if _EPOCH.search(low) else "generic", step=step, loss=number(loss.group("loss")),
        grad_norm=number(grad.group(1)) if grad else None, step_time_s=_seconds(taken), text=line[:TEXT_MAX],
    )  # fmt: skip
    return [with_loss_memory(report, state)]


def _epochs_before(low: str, total: float | None) -> int:
    """Steps of the epochs before, where the line counts within an epoch of known length."""
    epoch = _EPOCH.search(low)
    return int(epoch.group("epoch") or epoch.group("bare")) * int(total) if epoch is not None and total else 0


def _seconds(found: re.Match[str] | None) -> float | None:
    value = number(found.group(1)) if found else None
    if value is None or found is None:
        return None
    return value * (1e-3 if found.group(2).lower() == "ms" else 1.0)
