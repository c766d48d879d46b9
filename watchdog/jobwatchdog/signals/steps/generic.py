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
    rf"(?i)\b{_STEP_WORD}s?[\"']?\]?[ :=#]{{1,3}}[\"'\[]?(?P<step>\d+)(?![\d.])(?: *(?:/|of) *(?P<total>\d+))?"
)
_EPOCH: Final = re.compile(r"(?i)\bEpoch:? *\[?(?P<epoch>\d+)(?:/\d+)?\]?|^\s*\[(?P<bare>\d+)/\d+\] Iter\b")
_EPOCH_STEP: Final = re.compile(r"(?i)\bEpoch:? *\[?(?P<epoch>\d+)\]?[ \[]+(?P<step>\d+)/(?P<total>\d+)")
_LOSS: Final = re.compile(
    rf"(?i)(?<![\w/]){_LOSS_WORD}[\"']?[ :=]{{1,3}}[\"']?(?P<loss>{NUMBER})(?![\w])(?: *\((?P<mean>{NUMBER})\))?"
)
_GRAD: Final = re.compile(rf"(?i)\b(?:grad(?:ient)?[ _-]?norm|gnorm)[\"']?[ :=]{{1,3}}[\"']?({NUMBER})")
_TIME: Final = re.compile(rf"(?i)\b(?:step|iter|batch)[_ ]?time[\"']?[ :=]{{1,3}}({NUMBER}) ?(ms|s)\b")
_NOT_TRAINING: Final = re.compile(r"(?i)\b(?:val(?:id\w*)?|eval\w*|test\w*|dev|best|warning|error|overflow)[ _:/]")


class Generic:
    """Reads what `specific` (the union of the named formats) does not match."""

    def __init__(self, specific: re.Pattern[str]) -> None:
        self._specific = specific

    def __call__(self, line: str, state: StepState) -> list[Signal]:
        if len(line) > 4_000 or ":::MLLOG" in line or _NOT_TRAINING.search(line) or self._specific.search(line):
            return []
        place = _EPOCH_STEP.search(line) or _STEP.search(line)
        loss = _LOSS.search(line)
        if place is None or loss is None:
            return []
        grad, taken = _GRAD.search(line), _TIME.search(line)
        total = number(place.group("total"))
        step = int(place.group("step")) + self._epochs_before(line, total)
        report = StepReport(
            framework="generic-epoch" if _EPOCH.search(line) else "generic", step=step, loss=number(loss.group("loss")),
            grad_norm=number(grad.group(1)) if grad else None, step_time_s=_seconds(taken), text=line[:TEXT_MAX],
        )  # fmt: skip
        return [with_loss_memory(report, state)]

    @staticmethod
    def _epochs_before(line: str, total: float | None) -> int:
        """Steps of the epochs before, where the line counts within an epoch of known length."""
        epoch = _EPOCH.search(line)
        return int(epoch.group("epoch") or epoch.group("bare")) * int(total) if epoch is not None and total else 0


def _seconds(found: re.Match[str] | None) -> float | None:
    value = number(found.group(1)) if found else None
    if value is None or found is None:
        return None
    return value * (1e-3 if found.group(2).lower() == "ms" else 1.0)
