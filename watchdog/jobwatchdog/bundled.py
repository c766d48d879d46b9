"""Finds the files that ship beside the code, in a wheel and in a checkout alike."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def policies_dir() -> Traversable:
    """Return the folder of bundled policies."""
    shipped = files("jobwatchdog") / "_bundled" / "policies"
    if shipped.is_dir():
        return shipped
    return Path(__file__).resolve().parents[2] / "policies"
