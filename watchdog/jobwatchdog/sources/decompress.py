"""Compressed logs as text, up to the very place where they are cut or damaged."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import zstandard

# A decoder that meets damage gives nothing of its last piece, and one of zstd gives all of it at once, which may be
# 32 KiB for each byte: small pieces lose little and stay small.
FEED_BYTES: Final = 2048
OUT_BYTES: Final = 1 << 18
ZSTD_WINDOW_MAX: Final = 1 << 31  # `zstd --long=31`


class DamagedError(ValueError):
    """The data ends too early, or is no valid archive from here on; all before was given out."""


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _zstd() -> _Decoder:
    found: _Decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX).decompressobj()
    return found


_MAGIC: Final[tuple[tuple[bytes, Callable[[], _Decoder]], ...]] = (
    (b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31)),
    (b"\x28\xb5\x2f\xfd", _zstd),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", lzma.LZMADecompressor),
)


def decoder_for(head: bytes) -> Callable[[], _Decoder] | None:
    """Return what reads a file that begins so; None where it is not compressed."""
    return next((make for magic, make in _MAGIC if head.startswith(magic)), None)


def decompressed(blocks: Iterable[bytes], make: Callable[[], _Decoder]) -> Iterator[bytes]:
    """Yield the text of one or several archives, one after the other; DamagedError comes last, after all of it."""
    decoder: _Decoder | None = None
    parts: list[bytes] = []
    size = 0
    trouble = ""
    for data in _small(blocks):
        left = data
        while left and not trouble:
            if decoder is None:
                if not left.strip(b"\0"):
                    break  # padding behind an archive
                decoder = make()
            try:
                for part in _pieces(decoder, left):
                    parts.append(part)
                    size += len(part)
                    if size >= OUT_BYTES:
                        yield b"".join(parts)
                        parts, size = [], 0
            except (zlib.error, OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
                trouble = f"compressed data is damaged: {error}"
                break
            left = decoder.unused_data if decoder.eof else b""
            decoder = None if decoder.eof else decoder
        if trouble:
            break
    if size:
        yield b"".join(parts)
    if trouble or decoder is not None:
        raise DamagedError(trouble or "compressed data is cut short")


def _pieces(decoder: _Decoder, data: bytes) -> Iterator[bytes]:
    """What comes of a few bytes; with bz2 and xz that may be a gigabyte, so they are asked for it piece by piece."""
    if not isinstance(decoder, bz2.BZ2Decompressor | lzma.LZMADecompressor):
        yield decoder.decompress(data)
        return
    yield decoder.decompress(data, OUT_BYTES)
    while not decoder.needs_input and not decoder.eof:
        yield decoder.decompress(b"", OUT_BYTES)


def _small(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        for at in range(0, len(block), FEED_BYTES):
            yield block[at : at + FEED_BYTES]
