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


def _detector_files(name: str) -> dict[str, str]:
    folders = sorted((files("jobwatchdog") / "detectors").iterdir(), key=lambda entry: entry.name)
    found = {folder.name: folder / name for folder in folders if folder.is_dir()}
    return {folder: path.read_text(encoding="utf-8") for folder, path in found.items() if path.is_file()}


def signature_texts() -> list[tuple[str, str]]:
    """Return (file name, text) of every detector's catalogue of log signatures."""
    return [
        (f"detectors/{folder}/signatures.yaml", text) for folder, text in _detector_files("signatures.yaml").items()
    ]


def detector_documents() -> dict[str, str]:
    """Return detector id → text of its detector.yaml."""
    return _detector_files("detector.yaml")


def causal_table_text() -> str:
    """Return the text of the causal table."""
    return (files("jobwatchdog") / "incidents" / "causes.yaml").read_text(encoding="utf-8")
