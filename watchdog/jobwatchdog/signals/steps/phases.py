"""Lines that say what a job is doing: checkpoint begin and end, evaluation, the end of training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from jobwatchdog.model import Phase, PhaseChanged, Signal
from jobwatchdog.signals.steps.common import TEXT_MAX, StepState


@dataclass(frozen=True, slots=True)
class _Rule:
    """One shape. `trigger` is RE2 without captures; `pattern` is read on the hit and may name `step` and `path`."""

    phase: Phase
    begin: bool
    trigger: str
    pattern: re.Pattern[str]


def _rule(phase: Phase, begin: bool, pattern: str) -> _Rule:
    return _Rule(phase, begin, re.sub(r"\?P<\w+>", "?:", pattern), re.compile(pattern))


_PATH = r"(?P<path>[^\s'\",]+)"
_C, _E, _S, _T = Phase.CHECKPOINT, Phase.EVAL, Phase.SHUTDOWN, Phase.TRAIN

# Order matters: the first that fits decides; an end stands before the begin that its words contain.
RULES: Final = (
    _rule(_C, False, rf"successfully saved checkpoint (?:from|at) iteration +(?P<step>\d+) to {_PATH}"),
    _rule(_C, False, r"[Ss]uccessfully saved checkpoint"),
    _rule(_C, False, r"Finished saving the checkpoint"),
    _rule(_C, False, r"(?i)checkpoint save for step (?P<step>\d+) finalized"),
    _rule(_C, False, rf"\[Torch\] Saved {_PATH}"),
    _rule(_C, False, r"\[Torch\] Checkpoint (?P<path>\S+) is ready now"),
    _rule(_C, False, r"(?:Async|Asynchronous) checkpoint save .{0,60}(?:finalized|finished|complete)"),
    _rule(_C, False, rf"(?i)\b(?:saved|wrote) (?:model |training |trainer |the )?(?:checkpoint|snapshot)s? (?:to|at|in):? {_PATH}"),
    _rule(_C, False, r"(?i)\bcheckpoint (?:saved|written)\b"),
    _rule(_C, True, rf"saving checkpoint at iteration +(?P<step>\d+) to {_PATH}"),
    _rule(_C, True, r"Saving the checkpoint \(or staging if async is enabled\)"),
    _rule(_C, True, rf"Saving model checkpoint(?: to|:) {_PATH}"),
    _rule(_C, True, rf"\[Torch\] Saving {_PATH}"),
    _rule(_C, True, r"Scheduled async checkpoint save for (?P<path>\S+)"),
    _rule(_C, True, rf"(?i)\bsaving (?:a |the |model |full |final |optimizer |training |sharded )?(?:checkpoint|snapshot)s?\b(?:.{{0,40}}\b(?:to|at|in|as):? (?:step |iteration )?{_PATH})?"),
    _rule(_E, True, r"\*{5} Running [Ee]valuation"),
    _rule(_E, True, r"(?i)\bevaluating on (?:the )?(?:validation|test|dev|eval)\w* (?:set|data|split)?"),
    _rule(_E, True, r"(?i)\b(?:running|starting|begin(?:ning)?) (?:the )?(?:evaluation|validation)\b"),
    _rule(_E, True, r"Validation: iteration 1/\d+"),
    _rule(_E, False, r"valid(?:ation)? loss at iteration +(?P<step>\d+) "),
    _rule(_E, False, r"\bstep (?P<step>\d+): train loss [\d.naif]+, val loss "),
    _rule(_E, False, r"validate step: +(?P<step>\d+) +loss: "),
    _rule(_E, False, r"'eval_(?:loss|runtime)': "),
    _rule(_E, False, r"\bstep:(?P<step>\d+)/\d+ val_loss:"),
    _rule(_E, False, r"(?i)\b(?:evaluation|validation) (?:finished|complete[d]?|done)\b"),
    _rule(_S, True, r"Training completed\. Do not forget to share your model"),
    _rule(_S, True, r"(?i)\btrain(?:ing)?(?: run| loop)? (?:is )?(?:complete[d]?|finished|done)(?:\b(?! (?:step|epoch|iter|batch))|$)"),
    _rule(_S, True, r"`?Trainer\.fit`? stopped: `?max_(?:steps|epochs|time)"),
    _rule(_S, True, r"\[after training is done\]|\[exiting program (?:at|after)"),
    _rule(_S, True, r"exiting program (?:at|after) "),
    _rule(_S, True, r"peak memory allocated: \d+ MiB reserved: \d+ MiB"),
    _rule(_T, True, r"Training starts at step (?P<step>\d+)"),
    _rule(_T, True, r"\[before the start of training step\]"),
    _rule(_T, True, r"\*{5} Running training \*{5}"),
)  # fmt: skip

# RE2 has no look-ahead; the engine may then hit a few lines more, which the full pattern refuses.
TRIGGERS: Final = tuple(re.sub(r"\(\?![^()]*(?:\([^()]*\)[^()]*)*\)", "", rule.trigger) for rule in RULES)

_NOT_A_PHASE: Final = re.compile(
    r"(?i)\b(?:fail|error|unable|cannot|could not|would|will be|should|disabled|skipp?ing|not saving|"
    r"(?:graph|kernel|capture|compil\w*|download|prepar\w*)\b.{0,30}\bcomplete)|save_|--|(?:=|: )(?:True|False)\b|capture for training"
)


def parse(line: str, state: StepState) -> list[Signal]:
    """The phase that the line names; a complaint about saving is not a saving."""
    if len(line) > 2_000 or _NOT_A_PHASE.search(line):
        return []
    for rule in RULES:
        found = rule.pattern.search(line)
        if found is not None:
            return [_changed(rule, found, line, state)]
    return []


def _changed(rule: _Rule, found: re.Match[str], line: str, state: StepState) -> PhaseChanged:
    groups = found.groupdict()
    step = groups.get("step")
    path = groups.get("path")
    return PhaseChanged(
        phase=rule.phase,
        begin=rule.begin,
        step=int(step) if step else state.last_step,
        path=path.rstrip(".:;)") if path else None,
        text=line[:TEXT_MAX],
    )
