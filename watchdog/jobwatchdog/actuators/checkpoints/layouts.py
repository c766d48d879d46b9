"""Folder layouts of the training frameworks: what must be there for a checkpoint to be whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobwatchdog.actuators.checkpoints import dcp, safetensors_file, torch_file
from jobwatchdog.actuators.checkpoints.info import BrokenError, UnfinishedError, need, step_of

ZERO_SHARD = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
MEGATRON_LATEST = "latest_checkpointed_iteration.txt"
HF_STATE = "trainer_state.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """How one kind of folder is told and judged. `verify` returns the step where the contents state it."""

    name: str
    recognises: Callable[[Path], bool]
    verify: Callable[[Path, bool], int | None]


# ---- torch.distributed.checkpoint -------------------------------------------------------------------


def _is_dcp(folder: Path) -> bool:
    return (folder / dcp.METADATA).exists() or any(folder.glob("*.distcp"))


def _verify_dcp(folder: Path, deep: bool) -> int | None:
    dcp.verify(folder, deep=deep)
    return None


# ---- Hugging Face Trainer ---------------------------------------------------------------------------


def _is_hf(folder: Path) -> bool:
    return (folder / HF_STATE).exists() or bool(re.fullmatch(r"(tmp-)?checkpoint-\d+", folder.name))


def _verify_hf(folder: Path, deep: bool) -> int | None:
    state_file = folder / HF_STATE
    if not state_file.exists():
        raise UnfinishedError(f"{HF_STATE} is missing: the save did not finish")
    try:
        step = int(json.loads(need(state_file).read_bytes())["global_step"])
    except (ValueError, KeyError, TypeError) as bad:
        raise BrokenError(f"{HF_STATE} is cut off or damaged: {bad}") from None
    shards = [path for path in folder.iterdir() if path.is_dir() and (_is_dcp(path) or _is_deepspeed(path))]
    for shard in shards:
        (_verify_dcp if _is_dcp(shard) else _verify_deepspeed)(shard, deep)
    if not _verify_weights(folder, deep) and not shards:
        raise BrokenError("no model weights: neither safetensors nor pytorch_model.bin")
    for name in ("optimizer.pt", "scheduler.pt"):
        if (folder / name).exists():
            torch_file.verify(folder / name, deep=deep)
    random_state = sorted(folder.glob("rng_state*.pth"))
    if random_state and not shards and not (folder / "optimizer.pt").exists() and not any(folder.glob("optimizer*")):
        raise BrokenError("optimizer.pt is missing, though the random state was saved")
    for path in random_state:
        torch_file.verify(path)
    return step


def _verify_weights(folder: Path, deep: bool) -> bool:
    """False when there are none; indices first, as they name every shard."""
    indices = sorted(folder.glob("*.index.json"))
    for index in indices:
        safetensors_file.verify_index(index)
    files = sorted(
        [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin"), *folder.glob("adapter_model.bin")]
    )
    for path in files:
        if path.suffix == ".safetensors":
            safetensors_file.read_header(path)
        else:
            torch_file.verify(path, deep=deep)
    return bool(indices or files)


# ---- sharded safetensors without a trainer's state --------------------------------------------------


def _is_safetensors(folder: Path) -> bool:
    return any(folder.glob("*.safetensors.index.json"))


def _verify_safetensors(folder: Path, deep: bool) -> int | None:
    _verify_weights(folder, deep)
    return None


# ---- Megatron-LM ------------------------------------------------------------------------------------


def _is_megatron(folder: Path) -> bool:
    return bool(re.fullmatch(r"iter_\d+", folder.name))


def _verify_megatron(folder: Path, deep: bool) -> int | None:
    """`latest_checkpointed_iteration.txt` is written when all ranks have saved: what lies beyond it did not finish."""
    step = step_of(folder.name)
    latest = _megatron_latest(folder.parent)
    if latest is not None and step is not None and step > latest:
        raise UnfinishedError(f"{MEGATRON_LATEST} says {latest}: this save did not finish")
    if _is_dcp(folder):
        if (folder / "common.pt").exists():
            torch_file.verify(folder / "common.pt", deep=deep)
        return _verify_dcp(folder, deep)
    if not (ranks := sorted(folder.glob("mp_rank_*"))):
        raise BrokenError("neither .metadata nor a folder mp_rank_*")
    for rank in ranks:
        files = sorted(rank.glob("*.pt"))
        if not files:
            raise BrokenError(f"{rank.name} is empty")
        if not any(path.name in ("model_optim_rng.pt", "model_rng.pt") for path in files):
            raise BrokenError(f"{rank.name}/model_optim_rng.pt is missing")
        for path in files:
            torch_file.verify(path, deep=deep)
    _check_grid([tuple(int(n) for n in re.findall(r"\d+", rank.name)) for rank in ranks])
    return None


def _megatron_latest(root: Path) -> int | None:
    try:
        text = (root / MEGATRON_LATEST).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _check_grid(ranks: list[tuple[int, ...]]) -> None:
    """Tensor × pipeline ranks form a full grid from zero: a hole is a rank that never saved."""
    if len({len(rank) for rank in ranks}) != 1:
        return
    sizes = [max(axis) + 1 for axis in zip(*ranks, strict=True)]
    wanted = 1
    for size in sizes:
        wanted *= size
    if len(set(ranks)) < wanted:
        raise BrokenError(f"{len(ranks)} of {wanted} folders mp_rank_* are there")


# ---- DeepSpeed --------------------------------------------------------------------------------------


def _is_deepspeed(folder: Path) -> bool:
    return any(folder.glob("*_states.pt"))


def _verify_deepspeed(folder: Path, deep: bool) -> int | None:
    """One optimiser shard a data-parallel rank; how many there must be is stated in the model file."""
    models = sorted(folder.glob("*model_states.pt"))
    if not models:
        raise BrokenError("no *_model_states.pt")
    shards: dict[int, set[int]] = {}
    for path in sorted(folder.glob("*_states.pt")):
        torch_file.verify(path, deep=deep)
        if found := ZERO_SHARD.search(path.name):
            shards.setdefault(int(found[2]), set()).add(int(found[1]))
    if shards:
        stated = next((n for path in models if (n := dcp.stated_number(path, "dp_world_size")) is not None), None)
        wanted = stated or max(max(ranks) for ranks in shards.values()) + 1
        for mp_rank, ranks in sorted(shards.items()):
            if missing := sorted(set(range(wanted)) - ranks):
                raise BrokenError(f"optimiser shard of data-parallel rank {missing[0]} (mp_rank {mp_rank}) is missing")
    return None


# ---- NeMo 2 -----------------------------------------------------------------------------------------


def _is_nemo(folder: Path) -> bool:
    return (folder / "weights").is_dir() and (folder / "context").is_dir()


def _verify_nemo(folder: Path, deep: bool) -> int | None:
    weights = folder / "weights"
    if not _is_dcp(weights) and any(weights.iterdir()):
        return None  # an older backend (zarr): nothing more to look at
    return _verify_dcp(weights, deep)


# The first that recognises a folder judges it.
LAYOUTS = (
    Layout("megatron", _is_megatron, _verify_megatron),
    Layout("hf", _is_hf, _verify_hf),
    Layout("nemo", _is_nemo, _verify_nemo),
    Layout("dcp", _is_dcp, _verify_dcp),
    Layout("deepspeed", _is_deepspeed, _verify_deepspeed),
    Layout("safetensors", _is_safetensors, _verify_safetensors),
)


def layout_of(folder: Path) -> Layout | None:
    """None for a folder that is no checkpoint itself."""
    try:
        return next((layout for layout in LAYOUTS if layout.recognises(folder)), None)
    except OSError:
        return None
