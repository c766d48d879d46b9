"""GPU readings in logs: `nvidia-smi -q` reports, `--query-gpu=… --format=csv` rows, `dmon` rows.

The names of the reasons changed with driver 535 (`clocks_throttle_reasons` → `clocks_event_reasons`,
"Clocks Throttle Reasons" → "Clocks Event Reasons"); both are read.
"""

from __future__ import annotations

import re
from typing import Final

from jobwatchdog.model import GpuSample, Signal
from jobwatchdog.signals.steps.common import TEXT_MAX, GpuBlock, StepState, leading_number

_REASON_BITS: Final = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}
_CSV_BITS: Final = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}

Q_TRIGGERS: Final = (
    r"\bGPU [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]",
    r"Clocks (?:Throttle|Event) Reasons",
    r"(?:SW Power Cap|HW Slowdown|(?:HW|SW) Thermal Slowdown|HW Power Brake Slowdown) +: (?:Not )?Active",
    r"Max Clocks",
    r"\bSM +: \d+ MHz",
    r"GPU (?:Current|T\.Limit) Temp +: -?\d+ C",
    r"(?:Power Draw|Enforced Power Limit|Current Power Limit) +: [\d.]+ W",
)
CSV_TRIGGERS: Final = (
    r"(?:clocks_(?:throttle|event)_reasons\.|clocks\.(?:current\.)?sm \[MHz\]|clocks\.sm\b)",
    r", (?:Not Active|Active|0x[0-9A-Fa-f]{16})\b",
    r"\d+ MHz, ",
)

_HEADER: Final = re.compile(r"\bGPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_REASON: Final = re.compile(
    r"(SW Power Cap|HW Slowdown|HW Thermal Slowdown|SW Thermal Slowdown|HW Power Brake Slowdown) +: (Not )?Active"
)
_SM: Final = re.compile(r"\bSM +: (\d+) MHz")
_VALUE: Final = re.compile(
    r"(GPU Current Temp|GPU T\.Limit Temp|Power Draw|Enforced Power Limit|Current Power Limit) +: (-?[\d.]+)"
)


def parse_q(line: str, state: StepState) -> list[Signal]:
    """Collects one GPU's block; gives a sample where a reason or a clock completes what is known."""
    header = _HEADER.search(line)
    if header is not None:
        state.gpu = GpuBlock(gpu=bus_id(header.group(1)))
        return []
    block = state.gpu = state.gpu or GpuBlock()
    if "Clocks Throttle Reasons" in line or "Clocks Event Reasons" in line:
        block.reasons, block.in_max = 0, False
        return []
    reason = _REASON.search(line)
    if reason is not None:
        return _reason(block, reason, line)
    if "Max Clocks" in line:
        block.in_max = True
        return []
    clock = _SM.search(line)
    if clock is not None:
        return _clock(block, float(clock.group(1)), line)
    _store(block, line)
    return []


def _reason(block: GpuBlock, reason: re.Match[str], line: str) -> list[Signal]:
    """SW Thermal comes last in both wordings, so that the block is known there; a cause of the slowdown is told at once.

    "HW Slowdown" itself is not: its cause stands in the lines below it.
    """
    name, off = reason.groups()
    block.reasons = (block.reasons or 0) | (0 if off else _REASON_BITS[name])
    if name == "SW Thermal Slowdown" or (not off and name in ("HW Thermal Slowdown", "HW Power Brake Slowdown")):
        return [_sample(block, line)]
    return []


def _clock(block: GpuBlock, mhz: float, line: str) -> list[Signal]:
    if block.in_max:
        block.sm_clock_max_mhz = mhz
    else:
        block.sm_clock_mhz = mhz
    return [_sample(block, line)]


def _store(block: GpuBlock, line: str) -> None:
    found = _VALUE.search(line)
    if found is None:
        return
    name, value = found.group(1), float(found.group(2))
    if name == "GPU Current Temp":
        block.temp_c = value
    elif name == "GPU T.Limit Temp":
        block.temp_margin_c = value
    elif name == "Power Draw":
        block.power_w = value
    else:
        block.power_limit_w = value


def _sample(block: GpuBlock, line: str) -> GpuSample:
    return GpuSample(
        gpu=block.gpu, sm_clock_mhz=block.sm_clock_mhz, sm_clock_max_mhz=block.sm_clock_max_mhz, temp_c=block.temp_c,
        temp_margin_c=block.temp_margin_c, power_w=block.power_w, power_limit_w=block.power_limit_w,
        reasons=block.reasons, text=line.strip()[:TEXT_MAX],
    )  # fmt: skip


def bus_id(text: str) -> str:
    """`00000000:C5:00.0` as the kernel writes it: four digits of domain, lower case."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


# ---- rows -------------------------------------------------------------------------------------------


def parse_csv(line: str, state: StepState) -> list[Signal]:
    """A header names the columns; rows without a header seen before are not guessed at."""
    cells = [cell.strip() for cell in line.split(",")]
    if any(cell.split(" ")[0] in _KNOWN_COLUMNS for cell in cells) and not any(
        "MHz" in c and c[:1].isdigit() for c in cells
    ):
        state.csv_columns = tuple(cell.split(" ")[0] for cell in cells)
        return []
    if not state.csv_columns or len(cells) != len(state.csv_columns):
        return []
    row = dict(zip(state.csv_columns, cells, strict=True))
    gpu = (
        row.get("pci.bus_id")
        or row.get("gpu_bus_id")
        or row.get("index")
        or row.get("uuid")
        or row.get("gpu_uuid")
        or ""
    )
    return [
        GpuSample(
            gpu=bus_id(gpu) if gpu.count(":") == 2 else gpu,
            sm_clock_mhz=_first(row, "clocks.current.sm", "clocks.sm"),
            sm_clock_max_mhz=_first(row, "clocks.max.sm"), temp_c=_first(row, "temperature.gpu"),
            temp_margin_c=_first(row, "temperature.gpu.tlimit"), power_w=_first(row, "power.draw", "power.draw.instant"),
            power_limit_w=_first(row, "power.limit", "enforced.power.limit"), util_pct=_first(row, "utilization.gpu"),
            reasons=_csv_reasons(row), text=line[:TEXT_MAX],
        )
    ]  # fmt: skip


_KNOWN_COLUMNS: Final = frozenset(
    ["clocks.current.sm", "clocks.sm"]
    + [f"clocks_{era}_reasons.{name}" for era in ("throttle", "event") for name in ("active", *_CSV_BITS)]
)


def _first(row: dict[str, str], *names: str) -> float | None:
    for name in names:
        if name in row:
            return leading_number(row[name])
    return None


def _csv_reasons(row: dict[str, str]) -> int | None:
    bits: int | None = None
    for column, cell in row.items():
        if "_reasons." not in column:
            continue
        name = column.rsplit(".", 1)[1]
        if name == "active" and cell.lower().startswith("0x"):
            bits = (bits or 0) | int(cell, 16)
        elif name in _CSV_BITS:
            bits = (bits or 0) | (_CSV_BITS[name] if cell == "Active" else 0)
    return bits
