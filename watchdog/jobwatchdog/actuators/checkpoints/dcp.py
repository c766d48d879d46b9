"""torch.distributed.checkpoint folders: `.metadata` (written last, by the coordinator) and `__R_N.distcp` files."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

from jobwatchdog.actuators.checkpoints import torch_file
from jobwatchdog.actuators.checkpoints.info import BrokenError, UnfinishedError, need

METADATA = ".metadata"
METADATA_MAX = 1 << 30


class _Inert:
    """Stands for every class that a metadata pickle names: it keeps what it is given and does nothing."""

    def __new__(cls, *_args: object, **_kwargs: object) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *args: object, **_kwargs: object) -> None:
        self.args = args
        self.state: object = None
        self.items: dict[Any, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        if isinstance(key, str | int | tuple | _Inert):
            self.items[key] = value

    def append(self, _value: object) -> None:
        """Lists of odd classes fill themselves by this."""

    def extend(self, _values: object) -> None:
        """As `append`."""


class _InertUnpickler(pickle.Unpickler):
    """Reads the structure of a pickle without importing or calling anything that it names."""

    def find_class(self, module: str, name: str) -> type[_Inert]:
        return type(name, (_Inert,), {"__module__": module})

    def persistent_load(self, pid: object) -> object:
        return pid


def verify(folder: Path, *, deep: bool = False) -> None:
    """Metadata whole, every file that it names there and long enough."""
    metadata = folder / METADATA
    if not metadata.exists():
        raise UnfinishedError(f"{METADATA} is missing: the save did not finish")
    if need(metadata).stat().st_size > METADATA_MAX:
        return
    data = metadata.read_bytes()
    torch_file.check_pickle(data, METADATA)
    needed = _file_lengths(data)
    if not needed and not any(folder.glob("*.distcp")):
        raise BrokenError(f"{METADATA} is there, but no .distcp file")
    for name, length in sorted(needed.items()):
        size = need(folder / name, of=f", named by {METADATA}").stat().st_size
        if size < length:
            raise BrokenError(f"{name} is cut off: {size} of {length} bytes")
    if deep:
        for path in sorted(folder.glob("*.distcp")):
            _verify_items(path)


def _file_lengths(data: bytes) -> dict[str, int]:
    """File name → least length, from the storage entries of the metadata."""
    try:
        root = _InertUnpickler(io.BytesIO(data)).load()
    except Exception as bad:  # a damaged pickle fails in many ways; none of them runs its code
        raise BrokenError(f"{METADATA} cannot be read: {bad}") from None
    state = getattr(root, "state", None)
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1] or state[0]
    storage = state.get("storage_data") if isinstance(state, dict) else None
    lengths: dict[str, int] = {}
    for entry in (storage or {}).values():
        fields = getattr(entry, "state", None)
        if isinstance(fields, dict) and isinstance(fields.get("relative_path"), str):
            end = int(fields.get("offset", 0)) + int(fields.get("length", 0))
            name = fields["relative_path"]
            lengths[name] = max(lengths.get(name, 0), end)
    return lengths


def stated_number(path: Path, key: str) -> int | None:
    """A whole number at the top level of a torch.save file's dictionary; None when it has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.rsplit("/", 1)[-1] == "data.pkl")
            if archive.getinfo(name).file_size > torch_file.PICKLE_MAX:
                return None
            root = _InertUnpickler(io.BytesIO(archive.read(name))).load()
    except Exception:  # as above; whether the file is whole is judged elsewhere
        return None
    value = root.get(key) if isinstance(root, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _verify_items(path: Path) -> None:
    """Reads the file through once, so that an unreadable sector shows before the job meets it."""
    try:
        with path.open("rb") as file:
            while file.read(8 << 20):
                pass
    except OSError as bad:
        raise BrokenError(f"{path.name} cannot be read: {bad.strerror}") from None
