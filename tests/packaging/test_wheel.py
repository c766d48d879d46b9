"""The wheel built from the sdist is whole: code, policies, detector data, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _hatch(kind: str, source: Path, out: Path) -> Path:
    code = f"import os, hatchling.build as b; os.chdir({str(source)!r}); print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel from the sdist: what an installer sees."""
    out = tmp_path_factory.mktemp("dist")
    sdist = _hatch("sdist", ROOT, out)
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    return _hatch("wheel", out / sdist.name.removesuffix(".tar.gz"), out)


def test_wheel_holds_policies_with_their_tests_and_every_detectors_data(wheel: Path) -> None:
    """Nothing that the code reads at run time is left behind in the checkout."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "policies").rglob("*.yaml"):
        assert f"jobwatchdog/_bundled/policies/{path.relative_to(ROOT / 'policies')}" in names
    for path in (ROOT / "watchdog/jobwatchdog").rglob("*.yaml"):
        assert str(path.relative_to(ROOT / "watchdog")) in names
    assert "jobwatchdog/py.typed" in names
    assert not [name for name in names if name.startswith("watchdog/") or "__pycache__" in name]


def test_installed_wheel_replays_a_log_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """The command works from the unpacked wheel alone, with its bundled default policy."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    log = tmp_path / "dmesg.log"
    log.write_text(
        "[Mon Nov 30 12:00:01 2026] NVRM: Xid (PCI:0000:c5:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
    )
    env = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    where = subprocess.run(
        [sys.executable, "-c", "import jobwatchdog; print(jobwatchdog.__file__)"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    done = subprocess.run(
        [sys.executable, "-c", "from jobwatchdog.cli import main; main()", "replay", "--format", "json", str(log)],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert '"gpu_lost"' in done.stdout
