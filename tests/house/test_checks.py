"""The house rules are tests: style, types, and imports that point one way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="ruff"),
        pytest.param(["ruff", "format", "--check", "."], id="format"),
        pytest.param(["mypy"], id="mypy"),
        pytest.param(["lint-imports"], id="imports"),
    ],
)
def test_checks_are_clean(command: list[str]) -> None:
    """What `make lint` asks for holds for the tree under test."""
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_source_root_is_not_a_package() -> None:
    """`watchdog` as an import name belongs to another project on PyPI."""
    assert not (ROOT / "watchdog" / "__init__.py").exists()
