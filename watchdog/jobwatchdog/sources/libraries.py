"""Which PyTorch and NCCL a running process has loaded, from its memory map: nothing in the job is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Version = tuple[int, ...]

_TORCH: Final = re.compile(r"^(/.*)/torch/lib/libtorch(?:_cpu)?\.so", re.MULTILINE)
_NCCL: Final = re.compile(r"^(/.*?)/libnccl\.so(?:\.([\d.]+))?$", re.MULTILINE)
_NUMBERS: Final = re.compile(r"(\d+(?:\.\d+)+)")


@dataclass(frozen=True, slots=True)
class Libraries:
    """Releases; None = not loaded (yet), or not to be told."""

    torch: Version | None = None
    nccl: Version | None = None


def loaded(pid: int) -> Libraries:
    """Return what a process has mapped; nothing where that cannot be read."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return Libraries()
    paths = "\n".join(sorted({line.split(None, 5)[5] for line in maps.splitlines() if line.count("/")}))
    torch = _TORCH.search(paths)
    nccl = _NCCL.search(paths)
    return Libraries(
        torch=_of_distribution(Path(torch[1]), "torch") if torch else None,
        nccl=_nccl(Path(nccl[1]), nccl[2] or "") if nccl else None,
    )


def _nccl(folder: Path, suffix: str) -> Version | None:
    """By the file's own name (libnccl.so.2.21.5), or by the wheel that it lies in (site-packages/nvidia/nccl/lib)."""
    if suffix.count(".") >= 1:
        return _version(suffix)
    if folder.parts[-3:] == ("nvidia", "nccl", "lib"):
        return _of_distribution(folder.parents[2], "nvidia_nccl_cu*")
    return None


def _of_distribution(site: Path, name: str) -> Version | None:
    """By the folder that every installer leaves beside a package; the newest where several were left."""
    try:
        found = [_version(path.name) for path in site.glob(f"{name}-*.dist-info")]
    except OSError:
        return None
    return max((version for version in found if version is not None), default=None)


def _version(text: str) -> Version | None:
    found = _NUMBERS.search(text.partition("-")[2] or text)
    return tuple(map(int, found[1].split("."))) if found else None
