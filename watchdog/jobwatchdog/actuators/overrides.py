"""Turns a restart's `nccl`, `allocator` and `env` arguments into variables, merged with what the user had set."""

from __future__ import annotations

from collections.abc import Mapping

from jobwatchdog.model import Json

NCCL_NAMES = {
    "algo": "NCCL_ALGO",
    "proto": "NCCL_PROTO",
    "ib_timeout": "NCCL_IB_TIMEOUT",
    "ib_retry_cnt": "NCCL_IB_RETRY_CNT",
    "debug": "NCCL_DEBUG",
}
PER_COLLECTIVE_SINCE = (2, 24)  # from here on a plain `Tree` fails for collectives that have no tree


def environment(
    args: Mapping[str, Json], own: Mapping[str, str], nccl_version: tuple[int, ...] | None = None
) -> dict[str, str]:
    """Only the variables that change."""
    changed: dict[str, str] = {}
    nccl = args.get("nccl")
    for name, value in nccl.items() if isinstance(nccl, dict) else ():
        variable = NCCL_NAMES.get(name, name if name.startswith("NCCL_") else f"NCCL_{name.upper()}")
        changed[variable] = _algo(str(value), nccl_version) if name == "algo" else _text(value)
    allocator = args.get("allocator")
    if isinstance(allocator, dict) and allocator:
        # the newer name wins where both are set, so follow the user; the older is read by every version
        variable = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in own else "PYTORCH_CUDA_ALLOC_CONF"
        changed[variable] = _merged(own.get(variable, ""), allocator)
    if isinstance(skip := args.get("skip_data"), int):
        changed["JOBWATCHDOG_SKIP_BATCHES"] = str(skip)
    env = args.get("env")
    changed.update({name: _text(value) for name, value in (env.items() if isinstance(env, dict) else ())})
    return changed


def _algo(value: str, version: tuple[int, ...] | None) -> str:
    if ":" in value:
        return value  # already in the newer syntax
    if version is not None and version < PER_COLLECTIVE_SINCE:
        return value.capitalize()
    return f"allreduce:{value.lower()}"


def _merged(own: str, asked: Mapping[str, Json]) -> str:
    """`key:value,key:value`; what was asked for replaces the same key and leaves the rest."""
    pairs = dict(part.split(":", 1) for part in own.split(",") if ":" in part)
    pairs.update({name: _text(value) for name, value in asked.items()})
    return ",".join(f"{name}:{value}" for name, value in pairs.items())


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    return str(value)
