"""What a user may hand us by mistake: clear words, no traceback, bounded memory, the documented exit code."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NCCL = (
    "[rank0]:[E1130 12:00:00.100 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
    "before timing out.\n"
)
MEMORY_MB_MAX = 400


def run(
    *arguments: str | Path, stdin: bytes | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Call the tool as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "jobwatchdog", *map(str, arguments)], input=stdin, capture_output=True, cwd=cwd,
        env=os.environ | {"COLUMNS": "1000"}, check=False, timeout=120,
    )  # fmt: skip
    shown = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert "Traceback" not in "".join(shown)
    return subprocess.CompletedProcess(done.args, done.returncode, *shown)


def replayed(*arguments: str | Path, stdin: bytes | None = None) -> dict[str, object]:
    """Replay to JSON."""
    done = run("replay", "--format", "json", *arguments, stdin=stdin)
    assert done.returncode in (0, 1, 2), done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def kinds(found: dict[str, object]) -> list[str]:
    incidents = found["incidents"]
    assert isinstance(incidents, list)
    return [incident["kind"] for incident in incidents]


def test_an_empty_file_is_no_incident(tmp_path: Path) -> None:
    """Exit code 0."""
    log = tmp_path / "empty.log"
    log.touch()
    done = run("replay", log)
    assert done.returncode == 0
    assert "nothing broke" in done.stdout


def test_binary_junk_is_skipped_and_named(tmp_path: Path) -> None:
    """And the log beside it is still read."""
    (tmp_path / "core.1234").write_bytes(os.urandom(1 << 20))
    (tmp_path / "train.log").write_text(NCCL)
    found = replayed(tmp_path)
    assert kinds(found) == ["nccl_timeout"]
    assert any("core.1234" in str(one) for one in found["skipped"])  # type: ignore[attr-defined]


def test_only_junk_is_unreadable_input(tmp_path: Path) -> None:
    """Exit code 2: silence would look like health."""
    (tmp_path / "junk.log").write_bytes(os.urandom(1 << 16))
    done = run("replay", tmp_path / "junk.log")
    assert done.returncode == 2
    assert "binary" in done.stdout + done.stderr


def test_a_cut_archive_gives_what_it_holds(tmp_path: Path) -> None:
    """A copy that was interrupted."""
    whole = gzip.compress((NCCL + "iter 1: loss 2.0, time 100.00ms, mfu 1.00%\n" * 20_000).encode())
    (tmp_path / "train.log.gz").write_bytes(whole[: len(whole) // 2])
    found = replayed(tmp_path / "train.log.gz")
    assert kinds(found) == ["nccl_timeout"]
    assert "cut short" in str(found["skipped"])


def test_a_line_of_300_megabytes_costs_no_memory(tmp_path: Path) -> None:
    """A progress bar or a dump without a line break: what stands before and behind it is still found."""
    log = tmp_path / "train.log"
    with log.open("wb") as out:
        out.write(b"iter 1: loss 2.0, time 100.00ms, mfu 1.00%\n")
        for _ in range(300):
            out.write(b"x" * (1 << 20))
        out.write(b"\n" + NCCL.encode())
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'jobwatchdog', 'replay', '--format', 'json', sys.argv[1]])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    assert kinds(json.loads(done.stdout)) == ["nccl_timeout"]
    assert json.loads(done.stdout)["incidents"][0]["evidence"][0]["line"] == 3
    assert int(done.stderr.split()[-1]) < MEMORY_MB_MAX


def test_standard_input_is_a_log_too() -> None:
    """`kubectl logs … | jobwatchdog replay -`."""
    assert kinds(replayed("-", stdin=NCCL.encode())) == ["nccl_timeout"]


def test_terminal_noise_invalid_utf8_and_carriage_returns_hide_nothing(tmp_path: Path) -> None:
    """As real captures are."""
    log = tmp_path / "train.log"
    bar = b"".join(b"\rtrain: %d%%|####  | %d/100" % (n, n) for n in range(100))
    log.write_bytes(b"\xff\xfe broken \x00\n" + bar + b"\r\x1b[31m" + NCCL.encode().strip() + b"\x1b[0m\r\n")
    assert kinds(replayed(log)) == ["nccl_timeout"]


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    """Exit code 2."""
    done = run("replay", tmp_path / "nope.log")
    assert done.returncode == 2
    assert "does not exist" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    """And the rest is read."""
    (tmp_path / "a.log").write_text(NCCL)
    (tmp_path / "b.log").write_text(NCCL)
    (tmp_path / "b.log").chmod(0)
    found = replayed(tmp_path)
    assert "b.log" in str(found["skipped"])


def test_a_policy_full_of_mistakes_is_answered_with_all_of_them(tmp_path: Path) -> None:
    """File, line, column, and what was meant."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: jobwatchdog/v1\nkind: Policy\nmetadata: {name: Bad Name}\nspec:\n  mode: enforced\n  rules:\n"
        "    - name: a\n      on: [nccl_timout]\n      when: incident.confidense > 0.5\n"
        "      ladder:\n        - do: [{restrt: {}}]\n"
    )
    log = tmp_path / "train.log"
    log.write_text(NCCL)
    for command in (
        ("policy", "lint", policy),
        ("replay", log, "--policy", policy),
        ("run", "-p", policy, "--", "true"),
    ):
        done = run(*command)
        assert done.returncode in (1, 2), command
        said = " ".join((done.stdout + done.stderr).split())
        for words in ("nccl_timeout", "restart", "enforce", "policy.yaml:8", "policy.yaml:11"):
            assert words in said, (command, words)


@pytest.mark.parametrize("text", ["", "[]", "{", "a: b: c", "\x00\x01", "kind: Policy\n" * 2, "&a [*a]"])
def test_what_is_no_policy_at_all_is_refused(tmp_path: Path, text: str) -> None:
    """Never a traceback."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    done = run("policy", "lint", policy)
    assert done.returncode in (1, 2)
    assert "policy.yaml" in done.stdout + done.stderr


def test_a_bad_catalogue_is_refused_with_file_line_and_reason(tmp_path: Path) -> None:
    """All mistakes at once."""
    catalogue = tmp_path / "site.yaml"
    catalogue.write_text(
        "version: 1\nsignatures:\n"
        "  - {id: one, kind: storage, pattern: 'a(', summary: s, matches: ['a('], rejects: [b]}\n"
        "  - {id: two, kind: storrage, pattern: 'ab', summary: s, matches: ['zz'], rejects: [b]}\n"
    )
    log = tmp_path / "train.log"
    log.write_text(NCCL)
    done = run("replay", log, "--catalogue", catalogue)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    for words in ("site.yaml:3", "site.yaml:4", "missing )", "storrage"):
        assert words in said.replace("\n", ""), words


def test_a_sites_own_catalogue_is_matched(tmp_path: Path) -> None:
    """By flag."""
    catalogue = tmp_path / "site.yaml"
    catalogue.write_text(
        "version: 1\nsignatures:\n"
        "  - {id: site-quota, kind: storage, pattern: 'quota of group \\w+ is used up', summary: quota,\n"
        "     matches: ['quota of group g1 is used up'], rejects: ['quota of group g1 is half used']}\n"
    )
    log = tmp_path / "train.log"
    log.write_text("quota of group g7 is used up\n")
    assert kinds(replayed(log, "--catalogue", catalogue)) == ["storage"]


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    """As users expect."""
    done = run("detectors", "show", "nccl_timout")
    assert done.returncode == 2
    assert "did you mean nccl_timeout" in done.stderr
    done = run("replay", "--polcy", "x", "y")
    assert done.returncode == 2
    assert "--policy" in done.stderr


def test_replay_and_policy_never_import_ray(tmp_path: Path) -> None:
    """It would cost seconds."""
    log = tmp_path / "train.log"
    log.write_text(NCCL)
    for words in (["replay", str(log)], ["policy", "list"], ["detectors", "list"], ["status"]):
        code = (
            "import sys; from jobwatchdog.cli import app\n"
            f"try: app({words!r})\n"
            "except SystemExit: pass\n"
            "print([name for name in ('ray', 'torch', 'numpy', 'pandas') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", words


def test_a_command_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """A typo is no incident."""
    done = run("run", "--state", tmp_path, "--", "trochrun", "train.py")
    assert done.returncode == 2
    assert "'trochrun' cannot be run" in done.stderr
    assert not list(tmp_path.iterdir())
