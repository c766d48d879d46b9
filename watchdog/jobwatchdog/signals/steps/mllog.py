"""MLPerf's `:::MLLOG {json}` lines: training loss, evaluation, begin and end of the run."""

from __future__ import annotations

import json
from typing import Final

from jobwatchdog.model import Phase, PhaseChanged, Signal, StepReport
from jobwatchdog.signals.steps.common import TEXT_MAX, StepState

TRIGGERS: Final = (
    r':::MLLOG .*"key": "(?:train_loss|eval_start|eval_stop|run_start|run_stop|epoch_start)"',
    r':::MLLOG .*"tracked_stats", "value": \{"(?:train_|loss)',
)

_STEP_KEYS: Final = ("step", "step_num", "iteration", "samples_count")
_PHASES: Final = {
    "eval_start": (Phase.EVAL, True),
    "eval_stop": (Phase.EVAL, False),
    "run_start": (Phase.TRAIN, True),
    "run_stop": (Phase.SHUTDOWN, True),
    "epoch_start": (Phase.TRAIN, True),
}


def parse(line: str, state: StepState) -> list[Signal]:
    """One JSON object a line; `samples_count` stands in where the benchmark counts no steps."""
    start = line.find("{", line.find(":::MLLOG"))
    try:
        data, _ = json.JSONDecoder().raw_decode(line, start)
    except ValueError:
        return []  # cut or two ranks' lines glued together
    if not isinstance(data, dict):
        return []
    key, value = data.get("key"), data.get("value")
    meta = data.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    t_s = _time_s(data.get("time_ms"))
    step = _step(meta)
    if key in _PHASES:
        phase, begin = _PHASES[key]
        return [PhaseChanged(phase=phase, begin=begin, step=step, text=line[start : start + TEXT_MAX], t_s=t_s)]
    if step is None:
        return []
    loss, step_time = _numbers(value)
    if loss is None and step_time is None:
        return []
    state.last_step = step
    return [
        StepReport(
            framework="mllog", step=step, loss=loss, step_time_s=step_time, text=line[start : start + TEXT_MAX], t_s=t_s
        )
    ]  # fmt: skip


def _step(meta: dict[str, object]) -> int | None:
    for key in _STEP_KEYS:
        value = meta.get(key)
        if isinstance(value, (int, float)) and value == int(value):
            return int(value)
    return None


def _numbers(value: object) -> tuple[float | None, float | None]:
    """Loss and step time of a point: a bare number is the loss."""
    if isinstance(value, (int, float)):
        return float(value), None
    if isinstance(value, dict):
        loss = value.get("train_loss", value.get("loss"))
        time_s = value.get("train_step_time")
        return _as_float(loss), _as_float(time_s)
    return None, None


def _as_float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _time_s(value: object) -> float | None:
    return value / 1000.0 if isinstance(value, (int, float)) and value > 0 else None
