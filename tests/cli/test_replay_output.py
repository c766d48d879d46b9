"""What `replay` prints: the JSON that programs read, the timeline that a tired person reads, the page to pass on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gpu-lost"


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Call the tool in the root of the project."""
    command = [sys.executable, "-m", "jobwatchdog", "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, **options)


def test_the_json_has_what_it_promises() -> None:
    """Names, types and order; the first incident is the one to look at first."""
    done = run(EXAMPLE, "--policy", "gpu-fault", "--format", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["version"] == 1
    (incident,) = found["incidents"]
    assert incident["kind"] == "gpu_lost"
    assert incident["cause_class"] == "hardware"
    assert incident["restart_helps"] == "no"
    assert incident["xid"] == 79
    assert incident["suspects"] == {
        "nodes": ["node-0012"],
        "ranks": [],
        "gpus": ["0000:c5:00"],
        "links": [],
        "pids": [],
    }
    assert incident["first_seen"] == "2026-03-01T12:00:02Z"
    assert (incident["file"], incident["line"]) == (str(EXAMPLE / "node-0012.dmesg.log"), 1)
    assert incident["symptoms"] == ["nccl_timeout"]
    assert incident["evidence"][0]["text"].endswith("GPU has fallen off the bus.")
    (decision,) = incident["decisions"]
    assert (decision["policy"], decision["rule"], decision["rung"]) == ("gpu-fault", "gpu-fault", 1)
    assert decision["actions"] == ["collect", "drain", "restart", "notify"]
    assert found["stats"]["lines"] == 5
    assert found["stats"]["bytes"] == sum(path.stat().st_size for path in EXAMPLE.iterdir())


def test_the_same_logs_give_the_same_bytes() -> None:
    """But for the time that it took."""
    texts = [re.sub(r'"wall_s": [\d.]+', "", run(EXAMPLE, "--format", "json").stdout) for _ in range(2)]
    assert texts[0] == texts[1]


def test_the_timeline_says_what_who_since_when_and_what_would_be_done() -> None:
    """In the first lines, with file and line number of the evidence."""
    said = " ".join(run(EXAMPLE, "--policy", "gpu-fault", env={"COLUMNS": "200", "PATH": ""}).stdout.split())
    for words in (
        "gpu_lost node node-0012, GPU 0000:c5:00", "since 2026-03-01T12:00:02Z, XID 79",
        "a plain restart does not help",
        "explains: nccl_timeout", "would: collect → drain(node-0012) → restart", "node-0012.dmesg.log:1",
    ):  # fmt: skip
        assert words in said


def test_a_healthy_log_says_so(tmp_path: Path) -> None:
    """Exit code 0, and an empty list."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"iter {n}: loss {4 / (n + 1):.4f}, time 100.00ms, mfu 10.00%\n" for n in range(200)))
    done = run(log, "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["incidents"] == []


def test_the_report_is_one_file_and_runs_nothing_of_a_log(tmp_path: Path) -> None:
    """Whatever stands in a log stays text; nothing is loaded from elsewhere."""
    log = tmp_path / "train.log"
    log.write_text(
        "[rank1]: <script>alert(1)</script><img src=x onerror=alert(2)>\n"
        "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered <script>alert(3)</script>\n"
    )
    page = tmp_path / "report.html"
    done = run(log, "--report", page)
    assert done.returncode == 1
    html = page.read_text()
    assert "cuda_error" in html
    assert "train.log" in html
    assert "<script>alert" not in html
    assert "onerror=alert" not in html.replace("&lt;img src=x onerror=alert(2)&gt;", "")
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", html)


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """With the reason."""
    done = run(EXAMPLE, "--report", tmp_path / "no" / "folder" / "r.html")
    assert done.returncode == 2
    assert "the report cannot be written" in done.stderr
