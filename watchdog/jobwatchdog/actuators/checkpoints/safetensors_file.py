"""safetensors: a length, a JSON header, the tensors; and the index file of sharded models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from jobwatchdog.actuators.checkpoints.info import BrokenError, need

HEADER_MAX = 100 << 20  # the limit of the format's own reader


def read_header(path: Path) -> dict[str, object]:
    """The header, when the file holds all the bytes that it announces."""
    size = need(path).stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise BrokenError(f"{path.name} is cut off: {size} bytes")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(HEADER_MAX, size - 8):
            raise BrokenError(f"{path.name} is cut off or damaged: its header claims {length} of {size} bytes")
        try:
            header = json.loads(file.read(length))
        except ValueError as bad:
            raise BrokenError(f"{path.name}: the header is damaged: {bad}") from None
    if not isinstance(header, dict):
        raise BrokenError(f"{path.name}: the header is damaged: not a mapping")
    expected = 8 + length + _data_end(path, header)
    if size < expected:
        raise BrokenError(f"{path.name} is cut off: {size} of {expected} bytes")
    return header


def _data_end(path: Path, header: dict[str, object]) -> int:
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(o, int) for o in offsets)):
            raise BrokenError(f"{path.name}: the header is damaged: no offsets for {name}")
        if offsets[0] > offsets[1]:
            raise BrokenError(f"{path.name}: the header is damaged: {name} ends before it begins")
        end = max(end, offsets[1])
    return end


def metadata_step(header: dict[str, object]) -> int | None:
    """Some writers state the step in the file's metadata."""
    metadata = header.get("__metadata__")
    text = metadata.get("step") if isinstance(metadata, dict) else None
    return int(text) if isinstance(text, str) and text.isdigit() else None


def verify_index(index: Path) -> None:
    """Every shard that the index names is there and whole."""
    for name in sorted(set(index_shards(index))):
        shard = index.parent / name
        need(shard, of=f", named by {index.name}")
        if shard.suffix == ".safetensors":
            read_header(shard)


def index_shards(index: Path) -> list[str]:
    """File names in a `*.index.json`."""
    try:
        weight_map = json.loads(need(index).read_bytes())["weight_map"]
        return [str(name) for name in weight_map.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as bad:
        raise BrokenError(f"{index.name} is cut off or damaged: {bad}") from None
