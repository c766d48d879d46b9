"""Megatron's straggler report: the lowest and highest of each measure, with the rank that had it."""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import GpuSample, Signal
from jobwatchdog.signals.steps.common import TEXT_MAX, StepState

TRIGGERS: Final = (r"MnClk/Rnk: [\d.]+MHz/\d+",)

_PAIR: Final = re.compile(r"(Mn|Mx)(Clk|Tmp|Util|Utl|Pwr)/Rnk: ([\d.]+)[A-Za-z%]*/(\d+)")


def parse(line: str, state: StepState) -> list[Signal]:
    """Two samples: the slowest clock and the fastest, each under the name `rank N`, the fastest as the other's maximum."""
    del state
    values = {(end, what): (float(value), int(rank)) for end, what, value, rank in _PAIR.findall(line)}
    slow, fast = values.get(("Mn", "Clk")), values.get(("Mx", "Clk"))
    if slow is None or fast is None:
        return []
    hot = values.get(("Mx", "Tmp"))
    return [
        GpuSample(
            gpu=f"rank {rank}", sm_clock_mhz=mhz, sm_clock_max_mhz=fast[0],
            temp_c=hot[0] if hot is not None and hot[1] == rank else None, text=line[:TEXT_MAX],
        )
        for mhz, rank in (slow, fast)
    ]  # fmt: skip
