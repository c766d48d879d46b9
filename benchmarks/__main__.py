"""All benchmarks that take minutes or less: `python -m benchmarks`. The recovery one: `python -m benchmarks.recovery`."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("benchmarks.replay", "benchmarks.loss_spike", "benchmarks.step_lines")


def main() -> int:
    """Run one after the other; the worst exit code."""
    worst = 0
    for module in MODULES:
        print(f"\n== {module}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", module], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
