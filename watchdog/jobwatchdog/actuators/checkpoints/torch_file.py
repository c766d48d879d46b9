"""torch.save files: a zip archive of one pickle and one record a storage, or the older bare pickle."""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from pathlib import Path

from jobwatchdog.actuators.checkpoints.info import BrokenError, need

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".distcp")
PICKLE_MAX = 64 << 20  # a pickle beyond this is not walked opcode by opcode
ZIP_MAGIC = b"PK\x03\x04"


def verify(path: Path, *, deep: bool = False) -> None:
    """Directory at the end, every record within the file, the pickle whole; `deep` reads every byte (CRC)."""
    need(path)
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == ZIP_MAGIC:
        _verify_zip(path, deep=deep)
    elif magic[:1] == b"\x80":
        _verify_legacy(path)
    elif not magic.strip(b"\0"):
        raise BrokenError(f"{path.name} begins with zeros: its data never reached the disk")
    else:
        raise BrokenError(f"{path.name} is not a torch.save file (it begins with {magic!r})")


def _verify_zip(path: Path, *, deep: bool) -> None:
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_lengths(path, entries, size)
            pickles = [entry for entry in entries if entry.filename.rsplit("/", 1)[-1] == "data.pkl"]
            if not pickles and not any(entry.filename.endswith("/constants.pkl") for entry in entries):
                raise BrokenError(f"{path.name} holds no data.pkl")
            for entry in pickles:
                if entry.file_size <= PICKLE_MAX:
                    check_pickle(archive.read(entry), f"{path.name}: {entry.filename}")  # the read checks its CRC
            if deep and (bad := archive.testzip()):
                raise BrokenError(f"{path.name}: record {bad} is damaged (CRC)")
    except zipfile.BadZipFile as bad_zip:
        raise BrokenError(f"{path.name} is cut off or damaged: {bad_zip}") from None
    except (zlib.error, EOFError, NotImplementedError, RuntimeError) as bad_read:
        raise BrokenError(f"{path.name} cannot be read: {bad_read}") from None


def _check_lengths(path: Path, entries: list[zipfile.ZipInfo], size: int) -> None:
    """The local header of each record lies where the directory says, and its data ends within the file."""
    with path.open("rb") as file:
        for entry in entries:
            if entry.header_offset + entry.compress_size > size:
                raise BrokenError(f"{path.name}: record {entry.filename} reaches beyond the end of the file")
        for entry in (entries[0], entries[-1]) if entries else ():
            file.seek(entry.header_offset)
            if file.read(4) != ZIP_MAGIC:
                raise BrokenError(f"{path.name}: record {entry.filename} is not where the directory says")


def _verify_legacy(path: Path) -> None:
    """Formats before PyTorch 1.6: several pickles in a row, then raw storages; the first ones must be whole."""
    with path.open("rb") as file:
        for _ in range(3):
            try:
                for _opcode in pickletools.genops(file):
                    pass
            except ValueError as bad:
                raise BrokenError(f"{path.name} is cut off or damaged: {bad}") from None


def check_pickle(data: bytes, name: str) -> None:
    """Walks the opcodes, runs none of them: a whole pickle ends with its STOP."""
    try:
        for _opcode in pickletools.genops(data):
            pass
    except ValueError as bad:
        raise BrokenError(f"{name} is cut off or damaged: {bad}") from None
