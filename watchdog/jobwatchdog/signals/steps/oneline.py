"""Frameworks with one short record a line: torchtitan, nanoGPT, modded-nanogpt, litgpt, nanotron, verl."""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import Signal, StepReport
from jobwatchdog.signals.steps.common import NUMBER, TEXT_MAX, StepState, number, suffixed, with_loss_memory

TITAN_TRIGGERS: Final = (r"step: +\d+ +loss: ",)
NANOGPT_TRIGGERS: Final = (r"\biter \d+: loss ",)
MODDED_TRIGGERS: Final = (r"\bstep:\d+/\d+ (?:train_loss|val_loss|train_time|loss)",)
LITGPT_TRIGGERS: Final = (r"\biter \d+ step \d+(?: \||:) loss",)
NANOTRON_TRIGGERS: Final = (r"iteration: +\d+ / \d+ \| ",)
VERL_TRIGGERS: Final = (r"\bstep:\d+ - [a-z_]+/",)

_TITAN: Final = re.compile(rf"step: +(\d+) +loss: +({NUMBER})(?: +grad_norm: +({NUMBER}))?")
_NANOGPT: Final = re.compile(rf"\biter (\d+): loss ({NUMBER})(?:, time ({NUMBER})(ms|s))?")
_MODDED: Final = re.compile(
    rf"\bstep:(\d+)/(\d+)(?: (?:train_)?loss:({NUMBER}))?(?: val_loss:{NUMBER})?(?: train_time:({NUMBER})ms)?(?: step_avg:({NUMBER})ms)?"
)
_LITGPT: Final = re.compile(
    rf"\biter (\d+) step (\d+)(?: \||:) loss(?: train)?:? ({NUMBER}).*?iter time: ({NUMBER}) ?ms"
)
_NANOTRON: Final = re.compile(r"iteration: +(\d+) / (\d+) \|(.*)")
_VERL: Final = re.compile(r"\bstep:(\d+) - (.*)")


def parse_titan(line: str, state: StepState) -> list[Signal]:
    """`step: 1200  loss:  2.41873  grad_norm:  0.4121  …`; its validation lines are no step."""
    if "validate step:" in line:
        return []
    found = _TITAN.search(line)
    if found is None:
        return []
    return _report(state, line, "torchtitan", found.group(1), loss=found.group(2), grad_norm=found.group(3))


def parse_nanogpt(line: str, state: StepState) -> list[Signal]:
    """`iter 1200: loss 2.4187, time 1843.21ms, mfu 38.57%`."""
    found = _NANOGPT.search(line)
    if found is None:
        return []
    unit_s = 1e-3 if found.group(4) == "ms" else 1.0
    return _report(state, line, "nanogpt", found.group(1), loss=found.group(2), time=found.group(3), unit_s=unit_s)


def parse_modded(line: str, state: StepState) -> list[Signal]:
    """`step:12/1750 train_time:482ms step_avg:40.2ms`: mostly without a loss, now and then with a validation loss."""
    found = _MODDED.search(line)
    if found is None:
        return []
    step, total, loss, _, average = found.groups()
    report = StepReport(
        framework="modded-nanogpt", step=int(step), total=int(total), loss=number(loss),
        step_time_s=_scaled(average, 1e-3), text=line[:TEXT_MAX],
    )  # fmt: skip
    state.last_step = report.step
    return [report]


def parse_litgpt(line: str, state: StepState) -> list[Signal]:
    """Several `iter` (micro-batches) make one `step`."""
    found = _LITGPT.search(line)
    if found is None:
        return []
    micro, step, loss, time_ms = found.groups()
    report = StepReport(
        framework="litgpt", step=int(step), micro_step=int(micro), loss=number(loss),
        step_time_s=_scaled(time_ms, 1e-3), text=line[:TEXT_MAX],
    )  # fmt: skip
    return [with_loss_memory(report, state)]


def parse_nanotron(line: str, state: StepState) -> list[Signal]:
    """Three digits with K, M and B suffixes: `time_per_iteration_ms: 1.84K`."""
    found = _NANOTRON.search(line)
    if found is None:
        return []
    fields = {}
    for part in found.group(3).split("|"):
        key, colon, value = part.partition(":")
        if colon:
            fields[key.strip()] = value.strip()
    time_ms = suffixed(fields.get("time_per_iteration_ms", "") or fields.get("elapsed_time_per_iteration_ms", ""))
    report = StepReport(
        framework="nanotron", step=int(found.group(1)), total=int(found.group(2)),
        loss=suffixed(fields["lm_loss"]) if "lm_loss" in fields else None,
        grad_norm=suffixed(fields["grad_norm"]) if "grad_norm" in fields else None,
        lr=number(fields.get("lr")), step_time_s=None if time_ms is None else time_ms * 1e-3, text=line[:TEXT_MAX],
    )  # fmt: skip
    return [with_loss_memory(report, state)]


def parse_verl(line: str, state: StepState) -> list[Signal]:
    """`step:1200 - actor/pg_loss:0.0123 - actor/grad_norm:0.41 - …`; a policy loss lives around zero."""
    found = _VERL.search(line)
    if found is None:
        return []
    fields = dict(part.rsplit(":", 1) for part in found.group(2).split(" - ") if ":" in part)
    time_s = fields.get("perf/time_per_step") or fields.get("timing_s/step")
    state.last_step = int(found.group(1))
    report = StepReport(
        framework="verl", step=state.last_step, loss=number(fields.get("actor/pg_loss")),
        grad_norm=number(fields.get("actor/grad_norm")), step_time_s=number(time_s), text=line[:TEXT_MAX],
    )  # fmt: skip
    return [report]  # phases without an actor update have no such loss: its absence says nothing


def _report(
    state: StepState,
    line: str,
    framework: str,
    step: str,
    *,
    loss: str | None,
    grad_norm: str | None = None,
    time: str | None = None,
    unit_s: float = 1.0,
) -> list[Signal]:
    report = StepReport(
        framework=framework, step=int(step), loss=number(loss), grad_norm=number(grad_norm),
        step_time_s=_scaled(time, unit_s), text=line[:TEXT_MAX],
    )  # fmt: skip
    return [with_loss_memory(report, state)]


def _scaled(text: str | None, unit_s: float) -> float | None:
    value = number(text)
    return None if value is None else value * unit_s
