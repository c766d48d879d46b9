"""Whole logs: what can be read is read, what cannot is named."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from jobwatchdog.sources.decompress import DamagedError, decoder_for, decompressed
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


COMPRESSOR: dict[str, Callable[[], Any]] = {
    "gz": lambda: zlib.compressobj(1, wbits=31),
    "bz2": lambda: bz2.BZ2Compressor(1),
    "xz": lambda: lzma.LZMACompressor(preset=0),
    "zst": zstandard.ZstdCompressor().compressobj,
}


@pytest.mark.parametrize(("kind", "size_mb"), [("gz", 300), ("zst", 300), ("bz2", 100), ("xz", 100)])
def test_a_bomb_of_one_line_costs_bounded_memory(tmp_path: Path, kind: str, size_mb: int) -> None:
    """One letter, in one archive of a few KiB; matching it included."""
    path = tmp_path / "bomb"
    packer, piece = COMPRESSOR[kind](), b"a" * (1 << 20)
    with path.open("wb") as out:
        for _ in range(size_mb):
            out.write(packer.compress(piece))
        out.write(packer.flush())
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from jobwatchdog.sources.files import open_paths\n"
        "(file,), _ = open_paths([Path(sys.argv[1])])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "total = sum(len(block) for block in file.blocks())\n"
        "print(total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    total, grown_mb = map(int, done.stdout.split())
    assert total == size_mb << 20
    assert grown_mb < (200 if kind == "zst" else 30)


@given(st.sampled_from(sorted(PACK)), st.integers(0, 400), st.integers(1, 4096))
@settings(max_examples=60, deadline=None)
def test_an_archive_cut_anywhere_raises_nothing_and_gives_a_beginning(kind: str, keep: int, feed: int) -> None:
    """In whatever pieces it comes from the disk."""
    packed = PACK[kind](TEXT[:2000])
    cut = packed[: 6 + keep % len(packed)]
    pieces = [cut[at : at + feed] for at in range(0, len(cut), feed)]
    make = decoder_for(cut)
    assert make is not None
    text = b""
    with contextlib.ExitStack() as stack:
        if len(cut) < len(packed):
            stack.enter_context(pytest.raises(DamagedError))
        for block in decompressed(pieces, make):
            text += block
    assert TEXT[:2000].startswith(text)
    assert len(cut) < len(packed) or text == TEXT[:2000]


def test_a_cut_gzip_gives_up_to_the_last_line_that_can_be_read(tmp_path: Path) -> None:
    """All that its decoder can tell."""
    packed = gzip.compress(TEXT)
    path = tmp_path / "a.log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    text, trouble = read(path)
    assert text == zlib.decompressobj(wbits=31).decompress(packed[: len(packed) // 2])
    assert trouble == ["compressed data is cut short"]


def test_rubbish_behind_an_archive_is_told(tmp_path: Path) -> None:
    """Nulls are padding, as tapes and block devices add them."""
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"text\n") + b"\0" * 512)
    assert read(path) == (b"text\n", [])
    path.write_bytes(gzip.compress(b"text\n") + b"rubbish")
    text, (trouble,) = read(path)
    assert text == b"text\n"
    assert "damaged" in trouble


def test_standard_input_is_read_compressed_or_not_in_the_smallest_pieces(tmp_path: Path) -> None:
    """`zcat x | …`, `cat x.gz | …`, and nothing at all."""
    code = (
        "from jobwatchdog.sources.files import open_paths\n"
        "(file,), _ = open_paths(['-'])\n"
        "print(b''.join(file.blocks()), [one.reason for one in file.trouble])\n"
    )
    for data, said in [
        (gzip.compress(b"text\n"), "b'text\\n' []"),
        (b"te\xffxt\n", "b'te\\xffxt\\n' []"),
        (b"x", "b'x' []"),
        (b"", "b'' ['nothing came out of the pipe']"),
    ]:
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.closing(process.stdin):
                for n in range(len(data)):
                    process.stdin.write(data[n : n + 1])
                    process.stdin.flush()
            assert process.stdout.read().decode().strip() == said


def test_a_named_pipe_is_read_and_never_waited_for(tmp_path: Path) -> None:
    """As bash gives it for `<(…)`; one that nobody writes to is told."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert read(path) == (b"", ["nothing came out of the pipe"])
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, b"a line\n")
    (file,), _ = open_paths([path])
    blocks = file.blocks()
    assert next(blocks, b"") == b"a line\n"
    os.close(writer)
    assert list(blocks) == []
    os.close(reader)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_refused(path: str) -> None:
    """Reading it would never end, or wait for a person."""
    files, skipped = open_paths([path])
    assert files == []
    assert [(one.path, one.reason) for one in skipped if Path(path).exists()] == [(path, "not a file")]


def test_what_cannot_be_opened_in_a_folder_is_told_and_the_rest_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Circular links, folders and files without permission (refused here: root may read all)."""
    for name in ("a.log", "secret.log", "z.log"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "self.log").symlink_to("self.log")
    (tmp_path / "shut").mkdir()
    scan, open_file = os.scandir, os.open

    def refuse_folder(path: str) -> Any:
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    def refuse_file(path: str, *args: int) -> int:
        if str(path).endswith("secret.log"):
            raise PermissionError(13, "Permission denied")
        return open_file(path, *args)

    monkeypatch.setattr(os, "scandir", refuse_folder)
    monkeypatch.setattr(os, "open", refuse_file)
    files, skipped = open_paths([tmp_path, tmp_path / "nowhere"])
    text = b"".join(block for file in files for block in file.blocks())
    assert text == b"a.log\nz.log\n"
    reasons = {Path(one.path).name: one.reason for one in [*skipped, *(one for file in files for one in file.trouble)]}
    assert reasons == {
        "self.log": "cannot be read: Too many levels of symbolic links",
        "shut": "cannot be read: Permission denied",
        "nowhere": "cannot be read: No such file or directory",
        "secret.log": "cannot be read: Permission denied",
    }


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


def test_of_two_streams_without_times_output_comes_before_errors(tmp_path: Path) -> None:
    """What was printed leads up to what broke."""
    for name in ("stderr.log", "stdout.log", "slurm-7.err", "slurm-7.out"):
        (tmp_path / name).write_text("x\n")
    files, _ = open_paths([tmp_path])
    assert [Path(file.path).name for file in files] == ["slurm-7.out", "slurm-7.err", "stdout.log", "stderr.log"]


def test_junk_in_the_middle_is_counted_and_the_text_around_it_read(tmp_path: Path) -> None:
    """A disk that lost blocks."""
    path = tmp_path / "a.log"
    path.write_bytes(TEXT[: 1 << 19] + b"\0" * (1 << 19) + TEXT[: 1 << 19])
    text, trouble = read(path)
    assert text.count(b"iter 1:") == 2
    assert trouble == ["2 of 6 pieces of 256 KiB hold binary data: read all the same"]


@pytest.mark.parametrize("junk", [b"\0" * 20_000, bytes(range(256)) * 80, b"\xfe\x9d\x01\x02" * 5000])
@pytest.mark.parametrize("after", [b"", b"last line\n" * 10])
def test_junk_behind_a_beginning_of_text_is_counted(tmp_path: Path, junk: bytes, after: bytes) -> None:
    """Less of it than one piece too; the text around it is delivered."""
    path = tmp_path / "a.log"
    path.write_bytes(TEXT[:100_000] + junk + after)
    text, trouble = read(path)
    assert text == TEXT[:100_000] + junk + after
    assert trouble == ["1 of 1 pieces of 256 KiB hold binary data: read all the same"]


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
