"""Cleaning of raw log bytes without moving line numbers."""

from __future__ import annotations

import json
import re

# CSI sequences (colours, cursor moves), OSC titles, and lone two-byte escapes.
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])")


# What docker's json-file driver writes: one line of a container a record.
_DOCKER = re.compile(
    rb'(?:^|(?<=\r))\{"log":"([^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+)","stream":"(stdout|stderr)"'
    rb'(?:,"attrs":\{[^\r\n]*?\})?,"time":"([^"\r\n]{20,40})"\}(?=[\r\n])',
    re.MULTILINE,
)
_STRING = json.JSONDecoder(strict=False)


def unwrap(block: bytes) -> bytes:
    """Return docker's JSON records as containerd writes them, `TIME STREAM F LINE`; line breaks stay where they are."""
    return _DOCKER.sub(_unwrapped, block) if b'{"log":"' in block else block


def _unwrapped(record: re.Match[bytes]) -> bytes:
    line = record[1].removesuffix(b"\\n")
    if b"\\" in line:
        try:
            text = str(_STRING.decode(f'"{line.decode()}"'))
        except ValueError:
            return record[0]  # bytes that are no UTF-8
        line = text.replace("\n", "\\n").encode("utf-8", "replace")
    return record[3] + b" " + record[2] + b" F " + line


def strip_ansi(block: bytes) -> bytes:
    """Remove terminal escapes; line breaks stay, so line numbers do too."""
    return _ANSI.sub(b"", block) if b"\x1b" in block else block


def virtual_lines(block: bytes) -> bytes:
    r"""Return the block with more line breaks and the same length, so that offsets still fit.

    A progress bar rewrites its line with `\r`; collectors put whole tracebacks into one JSON string with
    a written-out `\n`. Both are lines to a reader.
    """
    if b"\r" in block:
        block = block.replace(b"\r", b"\n")
    if b"\\" in block and b"\\n" in block:  # one letter is found faster than two
        block = block.replace(b"\\n", b"\n\n")
    return block


def decode(line: bytes, limit: int = 8192) -> str:
    """Return text of at most `limit` bytes; what is no UTF-8 becomes the replacement character."""
    return line[:limit].decode("utf-8", "replace")
