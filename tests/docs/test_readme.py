"""What the README shows is what the program prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from jobwatchdog.policy.load import check_policy

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_policy_of_the_readme_has_no_mistake() -> None:
    """Ten lines that load without an error or a warning."""
    text = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert text is not None
    policy, problems = check_policy(text[1], "README.md")
    assert policy is not None
    assert problems == []


def test_command_of_the_readme_prints_what_stands_below_it() -> None:
    """Times of the run aside, the output is real."""
    block = re.search(r"```console\n\$ jobwatchdog (.*?)\n(.*?)\n```", README, re.DOTALL)
    assert block is not None
    done = subprocess.run(
        [sys.executable, "-m", "jobwatchdog", *block[1].split()],
        cwd=ROOT, env={**os.environ, "COLUMNS": "110"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert _timeless(done.stdout) == _timeless(block[2])


def _timeless(text: str) -> str:
    return re.sub(r"in \d+\.\d s", "in … s", text).strip()
