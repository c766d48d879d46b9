"""Whole logs: what can be read is read, what cannot is named."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from jobwatchdog.sources.files import LogFile, looks_binary, open_paths

TEXT = b"".join(b"iter %d: loss 2.0, time 100.00ms, mfu 1.00%%\n" % n for n in range(50_000))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the command line tool does
}


def read(path: Path) -> tuple[bytes, list[str]]:
    """Text and troubles of one file."""
    (file,), skipped = open_paths([path])
    text = b"".join(file.blocks())
    return text, [one.reason for one in [*skipped, *file.trouble]]


@pytest.mark.parametrize("kind", PACK)
def test_an_archive_gives_its_text(tmp_path: Path, kind: str) -> None:
    """Several in one file too, as rotation appends them."""
    path = tmp_path / "a.log"
    path.write_bytes(PACK[kind](TEXT) + PACK[kind](b"second\n"))
    assert read(path) == (TEXT + b"second\n", [])


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.98])
def test_a_cut_archive_gives_all_that_can_be_read_and_says_so(tmp_path: Path, kind: str, share: float) -> None:
    """Never more than the decoder itself holds back."""
    packed = PACK[kind](os.urandom(600_000).hex().encode())
    path = tmp_path / "a.log"
    path.write_bytes(packed[: int(len(packed) * share)])
    text, trouble = read(path)
    held_back = {"bz2": 900_000, "zst": 140_000, "xz": 70_000, "gz": 70_000}[kind]
    assert len(text) >= 1_200_000 * share - held_back
    assert trouble == ["compressed data is cut short"]


@pytest.mark.parametrize("kind", PACK)
def test_a_damaged_archive_gives_what_stands_before_the_damage(tmp_path: Path, kind: str) -> None:
    """And the reason is told, not raised."""
    packed = bytearray(PACK[kind](os.urandom(600_000).hex().encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    path = tmp_path / "a.log"
    path.write_bytes(packed)
    text, trouble = read(path)
    assert len(trouble) == 1
    assert "damaged" in trouble[0] or "cut short" in trouble[0]
    assert kind == "bz2" or len(text) > 300_000


@pytest.mark.parametrize("kind", PACK)
def test_a_bomb_of_one_line_costs_bounded_memory(tmp_path: Path, kind: str) -> None:
    """300 MB of one letter in a small file."""
    path = tmp_path / "bomb"
    with path.open("wb") as out:
        piece = b"a" * (50 << 20)
        for _ in range(6):
            out.write(PACK[kind](piece) if kind != "xz" else lzma.compress(piece, preset=0))
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from jobwatchdog.sources.files import open_paths\n"
        "(file,), _ = open_paths([Path(sys.argv[1])])\n"
        "total = sum(len(block) for block in file.blocks())\n"
        "print(total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    total, peak_mb = map(int, done.stdout.split())
    assert total == 300 << 20
    assert peak_mb < 400


def test_an_empty_file_and_a_vanished_one(tmp_path: Path) -> None:
    """Nothing, and a word."""
    path = tmp_path / "a.log"
    path.touch()
    assert read(path) == (b"", [])
    (file,), _ = open_paths([path])
    path.unlink()
    assert list(file.blocks()) == []
    assert [one.reason for one in file.trouble] == ["cannot be read: No such file or directory"]


def test_a_folder_gives_its_logs_in_order_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    """Weights, hidden files, pipes, broken and circular links."""
    (tmp_path / "b").mkdir()
    for name in ("b/2.log", "a.log", "model.pt", ".hidden"):
        (tmp_path / name).write_text("x\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken.log").symlink_to(tmp_path / "nowhere")
    files, skipped = open_paths([tmp_path])
    assert [Path(file.path).name for file in files] == ["a.log", "2.log"]
    reasons = {Path(one.path).name: one.reason for one in skipped}
    assert reasons == {
        "model.pt": ".pt is no log", "pipe": "not a file", "broken.log": "cannot be read: No such file or directory",
    }  # fmt: skip


def test_junk_in_the_middle_is_counted_and_the_text_around_it_read(tmp_path: Path) -> None:
    """A disk that lost blocks."""
    path = tmp_path / "a.log"
    path.write_bytes(TEXT[: 1 << 19] + b"\0" * (1 << 19) + TEXT[: 1 << 19])
    text, trouble = read(path)
    assert text.count(b"iter 1:") == 2
    assert trouble == ["2 of 6 pieces of 256 KiB look binary: read all the same"]


@pytest.mark.parametrize(
    ("head", "binary"),
    [
        (b"", False),
        (b"plain text\n" * 50, False),
        ("Schritt 5: Verlust 2,1 – größer\n".encode() * 50, False),
        ("Schritt 5: größer\n".encode("latin-1") * 50, False),
        (b"\x1b[31mred\x1b[0m\r 10%|###\r" * 50, False),
        (bytes(range(256)) * 8, True),
        (b"\x7fELF" + b"\0" * 500, True),
        ("UTF-16 text\n".encode("utf-16") * 50, True),
        (b"\x80\x02}q\x00X\x05\x00\x00\x00modelq\x01" * 20, True),
    ],
)
def test_text_is_told_from_binary_data(head: bytes, binary: bool) -> None:
    """By control bytes and by what is no UTF-8."""
    assert looks_binary(head) is binary


def test_progress_counts_what_was_taken_from_disk(tmp_path: Path) -> None:
    """So that a bar ends at its end."""
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(TEXT))
    (file,), _ = open_paths([path])
    taken: list[int] = []
    for _ in file.blocks(taken.append):
        pass
    assert sum(taken) == file.size == path.stat().st_size
    assert isinstance(file, LogFile)
