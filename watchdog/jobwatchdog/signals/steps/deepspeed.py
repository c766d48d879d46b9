"""DeepSpeed: `step=… skipped=…` (cumulative), the throughput timer, pipeline records and fp16 overflows.

Outside pipeline mode DeepSpeed prints no loss; the loss comes from the script's own lines.
"""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import Signal, StepReport
from jobwatchdog.signals.steps.common import NUMBER, TEXT_MAX, StepState, number, whole, with_loss_memory

TRIGGERS: Final = (
    r"\] step=\d+, skipped=\d+",
    r"micro_step=\d+/global_step=\d+",
    rf"steps: \d+ loss: {NUMBER} iter time",
    r"OVERFLOW! +(?:Rank \d+ +)?[Ss]kipping step",
    r"(?:Gradient overflow|Grad overflow).{0,40}loss scale",
)

_STEP: Final = re.compile(r"\] step=(\d+), skipped=(\d+)(?:, lr=\[([\d.eE+-]+))?")
_TIMER: Final = re.compile(r"micro_step=(\d+)/global_step=(\d+)")
_PIPE: Final = re.compile(rf"steps: (\d+) loss: ({NUMBER}) iter time \(s\): ({NUMBER})")
_OVERFLOW: Final = re.compile(
    r"(?i)overflow.*?skipping step.*?loss scale:? *(?:to )?([\d.e+]+)(?:, reducing to ([\d.e+]+))?"
)
_APEX: Final = re.compile(r"(?i)overflow.*?loss scale.*?(?:to|:) *([\d.e+]+)")


def parse(line: str, state: StepState) -> list[Signal]:
    """Whichever of the four forms the line has."""
    if "verflow" in line or "OVERFLOW" in line:
        return _overflow(line, state)
    if found := _PIPE.search(line):
        report = StepReport(
            framework="deepspeed-pipe", step=int(found.group(1)), loss=number(found.group(2)),
            step_time_s=number(found.group(3)), text=line[:TEXT_MAX],
        )  # fmt: skip
        return [with_loss_memory(report, state)]
    if found := _STEP.search(line):
        return _step(found, line, state)
    if found := _TIMER.search(line):
        return _timer(found, line, state)
    return []


def _step(found: re.Match[str], line: str, state: StepState) -> list[Signal]:
    total = int(found.group(2))
    before = state.skipped_total if state.skipped_total is not None else total
    state.skipped_total = total
    state.last_step = int(found.group(1))
    return [
        StepReport(
            framework="deepspeed", step=state.last_step, lr=number(found.group(3)), skipped=max(0, total - before),
            text=line[:TEXT_MAX],
        )
    ]  # fmt: skip


def _timer(found: re.Match[str], line: str, state: StepState) -> list[Signal]:
    step = whole(found.group(2)) or 0
    if state.last_step == step:
        return []
    state.last_step = step
    return [
        StepReport(framework="deepspeed", step=step, micro_step=int(found.group(1)), text=line[:TEXT_MAX]),
    ]


def _overflow(line: str, state: StepState) -> list[Signal]:
    """A skipped step. The line has no step number: the last one known is the best there is."""
    found = _OVERFLOW.search(line) or _APEX.search(line)
    if found is None:
        return []
    state.overflow_count += 1
    scale = number((found.group(2) if found.re is _OVERFLOW and found.group(2) else found.group(1)).rstrip("."))
    known = state.bar_step if state.bar_step is not None else state.last_step
    start = max(0, line.find("OVERFLOW") - 80)
    return [
        StepReport(
            framework="overflow", step=known if known is not None else state.overflow_count, skipped=1, loss_scale=scale,
            text=line[start : start + TEXT_MAX],
        )
    ]  # fmt: skip
