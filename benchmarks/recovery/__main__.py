"""How long a broken job stands still: our launcher beside torchrun, on the same job, with the same faults.

    python -m benchmarks.recovery [--runs 3] [--launchers ours,torchrun] [--faults kill,exc,stop,nan] [--json FILE]

Job: two gloo ranks, 0.2 s a step, a checkpoint every 10 steps, 60 steps; the fault hits rank 1 in step 25, once.
All times are seconds after the fault. `detect` is the first sign of it in the launcher's own record or log, `respawn`
the kernel's start time of the first new process of the job, `first step` the first step line after it. Our own share
is `respawn`: what follows (Python, imports, gloo) is the job's. `torchrun+variable` is torchrun with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which keeps its workers from a dead attempt's addresses. A run that shows no new
step within --cap-s has hung.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jobwatchdog.ledger import Reader
from jobwatchdog.model import IncidentChanged

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
FAULTS = {"kill": "SIGKILL", "exc": "RuntimeError", "stop": "SIGSTOP", "nan": "NaN"}
TRAIN = ["-m", "jobwatchdog.testing.toy_train", "--ckpt-dir", "ckpt", "--fault-step", "25"]


@dataclass
class Run:
    """One run and what was seen of it."""

    launcher: str
    fault: str
    outcome: str = "hung"  # recovered | died | hung | unnoticed
    detect_s: float | None = None
    respawn_s: float | None = None
    first_step_s: float | None = None
    resumed_step: int | None = None
    cold_s: float | None = None
    load: float = 0.0
    watched_until: float = 0.0  # what the launcher says after this is about our own ending of the run
    lines: list[tuple[float, str]] = field(default_factory=list, repr=False)


def command(launcher: str, fault: str, steps: int, ours: list[str]) -> list[str]:
    """The whole command line of a launcher."""
    job = [*TRAIN, "--fault", fault, "--steps", str(steps)]
    torchrun = [str(BIN / "torchrun"), "--nproc-per-node=2", "--max-restarts=3", "--standalone", *job]
    watched = [*ours, "--policy", str(HERE / "policy.yaml"), "--"]
    return {
        "ours": [*watched, sys.executable, *job, "--nproc", "2"],
        "ours+torchrun": [*watched, *torchrun[:2], "--max-restarts=0", *torchrun[3:]],
        "torchrun": torchrun,
        "torchrun+variable": torchrun,
    }[launcher]


def run_once(launcher: str, fault: str, args: argparse.Namespace) -> Run:
    """Starts the job in a folder of its own and watches its output."""
    folder = Path(tempfile.mkdtemp(prefix="recovery-"))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JOBWATCHDOG_", "TORCH_DISABLE_SHARE"))}
    env |= {"JOBWATCHDOG_STATE": str(folder / "state"), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    if launcher == "torchrun+variable":
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    run = Run(launcher, fault, load=os.getloadavg()[0])
    begun = time.time()
    with subprocess.Popen(
        command(launcher, fault, args.steps, args.ours.split()), cwd=folder, env=env, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        reader = threading.Thread(target=_read, args=(process, run), daemon=True)
        reader.start()
        _watch(process, run, folder / "ckpt", args.cap_s)
        run.watched_until = time.time()
        _end(process, folder)
        reader.join(10)
    _measure(run, folder, begun)
    if args.keep is not None:
        kept = args.keep / f"{launcher}-{fault}-{int(begun)}"
        shutil.copytree(folder, kept, symlinks=True, ignore_dangling_symlinks=True)
        (kept / "output.txt").write_text("".join(f"{at - begun:8.3f} {line}\n" for at, line in run.lines))
    shutil.rmtree(folder, ignore_errors=True)
    return run


def _read(process: subprocess.Popen[bytes], run: Run) -> None:
    assert process.stdout is not None, "asked for a pipe"
    for raw in process.stdout:
        run.lines.append((time.time(), raw.decode(errors="replace").rstrip()))


def _watch(process: subprocess.Popen[bytes], run: Run, checkpoints: Path, cap_s: float) -> None:
    """Until five new steps were seen after the fault, the launcher has ended, or the time is over."""
    started = time.time()
    while process.poll() is None:
        time.sleep(0.05)
        fired = _fault_time(checkpoints)
        if time.time() - (fired or started + 60) > cap_s:
            return
        if fired is not None and len(list(_new_steps(run, fired))) >= 5:
            run.outcome = "recovered"
            return
    run.outcome = "died" if process.returncode else "unnoticed"


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """The launcher by SIGTERM, then everything that runs in the folder."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if folder in (here := (proc / "cwd").readlink()).parents or here == folder:
                os.kill(int(proc.name), signal.SIGKILL)
        except OSError:
            continue


def _fault_time(checkpoints: Path) -> float | None:
    try:
        return float((checkpoints / ".fault-fired").read_text().split()[2])
    except (OSError, IndexError):
        return None


def _new_steps(run: Run, fault_s: float) -> Iterator[tuple[float, int]]:
    """Step lines printed after the job said that it resumed."""
    resumed = False
    for at, line in list(run.lines):
        if at > fault_s and "resumed from checkpoint" in line:
            resumed = True
        if resumed and "iter " in line and ": loss" in line and "loss nan" not in line:
            yield at, int(line.split("iter ", 1)[1].split(":", 1)[0])


def _measure(run: Run, folder: Path, begun: float) -> None:
    fault_s = _fault_time(folder / "ckpt")
    first = next((at for at, line in run.lines if "iter 1:" in line), None)
    run.cold_s = None if first is None else first - begun
    if fault_s is None:
        return
    new = next(_new_steps(run, fault_s), None)
    if new is not None:
        run.first_step_s, run.resumed_step = new[0] - fault_s, new[1]
    run.respawn_s = _respawn(folder, fault_s)
    run.detect_s = _detect(run, folder, fault_s)


def _respawn(folder: Path, fault_s: float) -> float | None:
    """Kernel start times that the ranks noted, and ours of the job's first process."""
    times: list[float] = [
        json.loads(path.read_text())["time"] for path in folder.glob("state/jobs/*/attempt-*/start.json")
    ]
    with contextlib.suppress(OSError):
        times += [float(line.split()[1]) for line in (folder / "ckpt" / ".starts").read_text().splitlines()]
    return min((t - fault_s for t in times if t > fault_s), default=None)


def _detect(run: Run, folder: Path, fault_s: float) -> float | None:
    for ledger in folder.glob("state/**/ledger.db"):
        return asyncio.run(_first_incident(ledger, fault_s))
    signs = ("Sending process", "failed (exitcode", "Closing signal", "exitcode:")
    said = (at for at, line in run.lines if fault_s < at < run.watched_until and any(sign in line for sign in signs))
    return next((at - fault_s for at in said), None)


async def _first_incident(ledger: Path, fault_s: float) -> float | None:
    async with await Reader.open(str(ledger)) as reader:
        changes = [e.item for e in await reader.story() if isinstance(e.item, IncidentChanged)]
    return next((change.now_s - fault_s for change in changes if change.now_s > fault_s), None)


def table(runs: list[Run]) -> str:
    """Markdown, one line a fault and launcher."""
    rows = [
        "| fault | launcher | runs | recovered | died | hung | unnoticed | detect | respawn (own share) | first step |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for fault, title in FAULTS.items():
        for launcher in dict.fromkeys(run.launcher for run in runs):
            mine = [run for run in runs if (run.fault, run.launcher) == (fault, launcher)]
            if not mine:
                continue
            counts = [sum(run.outcome == o for run in mine) for o in ("recovered", "died", "hung", "unnoticed")]
            good = [run for run in mine if run.outcome == "recovered"]
            spans = [
                _span([getattr(run, field) for run in good]) for field in ("detect_s", "respawn_s", "first_step_s")
            ]
            rows.append(
                f"| {title} | {launcher} | {len(mine)} | {' | '.join(map(str, counts))} | {' | '.join(spans)} |"
            )
    return "\n".join(rows)


def _span(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = f"{statistics.median(known):.2f}"
    return middle if len(known) == 1 else f"{middle} ({min(known):.2f}-{max(known):.2f})"


def main() -> None:
    """Runs one after the other, in turn between launchers, so that a busy machine hits all alike."""
    parser = argparse.ArgumentParser(prog="benchmarks.recovery", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--launchers", default="ours,ours+torchrun,torchrun,torchrun+variable")
    parser.add_argument("--faults", default="kill,exc,stop,nan")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cap-s", type=float, default=60.0)
    parser.add_argument("--ours", default=f"{BIN / 'jobwatchdog'} run", help="the command that is measured as ours")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep every run's folder below this one")
    args = parser.parse_args()
    runs: list[Run] = []
    for number in range(args.runs):
        for fault in args.faults.split(","):
            for launcher in args.launchers.split(","):
                run = run_once(launcher, fault, args)
                runs.append(run)
                print(
                    f"{number + 1}/{args.runs} {fault:5} {launcher:14} {run.outcome:10} detect {_span([run.detect_s])} "
                    f"respawn {_span([run.respawn_s])} first step {_span([run.first_step_s])} load {run.load:.1f}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
    print(table(runs))
    if args.json is not None:
        args.json.write_text(
            json.dumps([{k: v for k, v in asdict(run).items() if k != "lines"} for run in runs], indent=1)
        )


if __name__ == "__main__":
    main()
