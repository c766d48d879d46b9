"""Step lines of training frameworks: which lines to look at, and how to read them.

The scanner adds `STEP_TRIGGERS` to its multi-pattern engine and hands each hit line to `parse_trigger`
with the state of its stream. A line that hits several triggers of one parser is parsed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from jobwatchdog.model import Signal
from jobwatchdog.signals.steps import (
    bars,
    deepspeed,
    generic,
    megatron,
    mllog,
    multiline,
    nemo,
    nvidia_smi,
    oneline,
    phases,
    straggler,
)
from jobwatchdog.signals.steps.common import Parse, StepState

__all__ = ["PARSERS", "STEP_TRIGGERS", "StepParser", "StepState", "new_state", "parse_trigger"]


@dataclass(frozen=True, slots=True)
class StepParser:
    """One family of lines: the id, the RE2 patterns that find them, the function that reads them."""

    id: str
    triggers: tuple[str, ...]
    parse: Parse


_NAMED: Final = (
    StepParser("megatron", megatron.TRIGGERS, megatron.parse),
    StepParser("nemo", nemo.TRIGGERS, nemo.parse),
    StepParser("trainer-dict", bars.DICT_TRIGGERS, bars.parse_dict),
    StepParser("bar", bars.BAR_TRIGGERS, bars.parse_bar),
    StepParser("deepspeed", deepspeed.TRIGGERS, deepspeed.parse),
    StepParser("torchtitan", oneline.TITAN_TRIGGERS, oneline.parse_titan),
    StepParser("composer", multiline.COMPOSER_TRIGGERS, multiline.parse_composer),
    StepParser("olmo-core", multiline.OLMO_TRIGGERS, multiline.parse_olmo),
    StepParser("nanogpt", oneline.NANOGPT_TRIGGERS, oneline.parse_nanogpt),
    StepParser("modded-nanogpt", oneline.MODDED_TRIGGERS, oneline.parse_modded),
    StepParser("litgpt", oneline.LITGPT_TRIGGERS, oneline.parse_litgpt),
    StepParser("nanotron", oneline.NANOTRON_TRIGGERS, oneline.parse_nanotron),
    StepParser("verl", oneline.VERL_TRIGGERS, oneline.parse_verl),
    StepParser("mllog", mllog.TRIGGERS, mllog.parse),
)
PARSERS: Final[dict[str, StepParser]] = {
    parser.id: parser
    for parser in (
        *_NAMED,
        StepParser("phase", phases.TRIGGERS, phases.parse),
        StepParser("nvidia-smi-q", nvidia_smi.Q_TRIGGERS, nvidia_smi.parse_q),
        StepParser("nvidia-smi-csv", nvidia_smi.CSV_TRIGGERS, nvidia_smi.parse_csv),
        StepParser("straggler", straggler.TRIGGERS, straggler.parse),
        StepParser("generic-step", generic.TRIGGERS, generic.parse),
    )
}

STEP_TRIGGERS: Final[tuple[tuple[str, str], ...]] = tuple(
    (parser.id, trigger) for parser in PARSERS.values() for trigger in parser.triggers
)


def new_state() -> StepState:
    """Fresh state for one stream."""
    return StepState()


def parse_trigger(trigger_id: str, line: str, state: StepState) -> list[Signal]:
    """What `line`, which hit a trigger of parser `trigger_id`, says; job, origin and time are left to the caller.

    MLPerf lines alone state their own time in a field: `t_s` is then set.
    """
    return PARSERS[trigger_id].parse(line, state)
