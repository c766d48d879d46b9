"""Replay throughput beside ripgrep, on the same patterns and the same file, in the same run.

    python -m benchmarks.replay [--mb 400] [--rounds 3] [--lines-a-step 200] [--log FILE] [--ranks N]

ripgrep counts matching lines on one thread with every pattern of the catalogue and of the step lines; we do the whole
thing: match, parse, detect, group, decide. The log is made here: lines of a large run (NCCL notes, warnings, data
loader, scheduler, progress) with a step line every so many lines, and one fault near its end that must be found.
Memory is measured on files of one and of four parts: it must not grow with the log.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobwatchdog import bundled
from jobwatchdog.signals.catalogue import Catalogue
from jobwatchdog.signals.scanner import pattern_list

TARGET = 0.5
_LINES = (
    "node{node:03d}:{pid}:{pid} [{gpu}] NCCL INFO Channel {n:02d}/0 : {gpu}[{gpu}] -> {n}[{gpu}] via P2P/CUMEM/read",
    "node{node:03d}:{pid}:{pid} [{gpu}] NCCL INFO Connected all rings, use ring PXN 0 GDR 1",
    "[default{gpu}]:/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:{n}: FutureWarning: `torch.x` is old",
    "[{stamp}] [INFO] [rank{rank}] fetched shard {n} of 65536 in {ms}.{gpu} ms (cache hit {n}%)",
    "{stamp},{ms} | INFO | trainer.data | rank {rank} | tokens={n}00000 buffer=0.{ms} workers=8",
    "[Rank {rank}] (after {n} iterations) memory (MB) | allocated: 40960.{ms} | max allocated: 60211.{ms} | reserved: 70144.0",
    "slurmstepd: info: task {rank}: cpu_bind=MASK - node{node:03d}, mask 0xffff{n:04x}",
    "(RayTrainWorker pid={pid}, ip=10.0.{gpu}.{node}) epoch 0: prefetching batch {n}, queue {gpu}/8",
    'DEBUG:urllib3.connectionpool:https://metrics.example.org:443 "POST /api/v1/push HTTP/1.1" 204 0 ({ms} ms)',
)
_STEP = (
    " [{stamp}.{ms:03d}] iteration {step:8d}/  500000 | consumed samples: {samples:12d} | elapsed time per iteration (ms): "
    "1843.{gpu} | learning rate: 2.731000E-04 | global batch size:   512 | lm loss: 2.4{ms:03d}E+00 | loss scale: 1.0 | "
    "grad norm: 0.4{ms:03d} | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
_FAULT = (
    "[rank17]:[E1130 23:11:09.412 ProcessGroupNCCL.cpp:632] [Rank 17] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=188122, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600013 "
    "milliseconds before timing out."
)


def write_log(path: Path, n_bytes: int, lines_a_step: int) -> None:
    """A log of about this size; the same every time."""
    chance, step, written = random.Random(3), 0, 0
    begin_s = 1_790_000_000
    with path.open("w") as out:
        while written < n_bytes:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(begin_s + 2 * step))
            step += 1
            row = [
                chance.choice(_LINES).format(
                    node=chance.randrange(64), pid=chance.randrange(10_000, 99_999), gpu=chance.randrange(8),
                    n=chance.randrange(64), rank=chance.randrange(512), ms=chance.randrange(100, 999), stamp=stamp,
                )
                for _ in range(lines_a_step)
            ]  # fmt: skip
            row.append(
                _STEP.format(stamp=stamp, ms=chance.randrange(400, 500), step=step, samples=512 * step, gpu=step % 8)
            )
            text = "\n".join(row) + "\n"
            out.write(text)
            written += len(text)
        out.write(_FAULT + "\n")


def patterns_file(folder: Path) -> Path:
    """Every pattern that our engine matches, without names of groups, one a line."""
    catalogue = Catalogue.parse(bundled.signature_texts(), check=False)
    path = folder / "patterns.txt"
    plain = (re.sub(r"\(\?P<\w+>", "(?:", one).replace('\\"', '"') for one in pattern_list(catalogue))
    path.write_text("\n".join(plain) + "\n")
    return path


def timed(command: list[str], good: tuple[int, ...]) -> tuple[float, str, float]:
    """Seconds of wall time, standard output, peak memory of all children so far in MB."""
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    if done.returncode not in good:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return took, done.stdout, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def replayed(path: Path, *, must_find: bool) -> float:
    """Seconds for the whole pipeline."""
    took, said, _ = timed([sys.executable, "-m", "jobwatchdog", "replay", "--format", "json", str(path)], (0, 1))
    if must_find:
        kinds = [incident["kind"] for incident in json.loads(said)["incidents"]]
        if kinds != ["nccl_timeout"]:
            raise SystemExit(f"the fault was not found as it should be: {kinds}")
    return took


def peak_mb(path: Path) -> float:
    """Peak memory of one replay, by a process of its own that has no other child."""
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run([sys.executable, '-m', 'jobwatchdog', 'replay', '--format', 'json', sys.argv[1]], "
        "stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    return float(timed([sys.executable, "-c", code, str(path)], (0,))[1])


def main() -> int:
    """Print a table; exit code 1 when we are slower than half of ripgrep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines-a-step", type=int, default=200)
    parser.add_argument("--log", type=Path, help="measure on this log instead")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, part = folder / "train.log", folder / "part.log"
        if args.log is None:
            write_log(log, args.mb << 20, args.lines_a_step)
            write_log(part, args.mb << 18, args.lines_a_step)
        else:
            log = args.log
        patterns = patterns_file(folder)
        rg = ["rg", "--threads", "1", "--text", "--count", "--no-config", "-f", str(patterns), str(log)]
        ours, theirs = [], []
        replayed(log, must_find=args.log is None)  # warms the file cache and the pattern cache
        for _ in range(args.rounds):
            ours.append(replayed(log, must_find=False))
            theirs.append(timed(rg, (0, 1))[0])
        size = log.stat().st_size / 1e6
        ratio = statistics.median(theirs) / statistics.median(ours)
        print(f"{'':22s} {'s':>8s} {'MB/s':>8s}   ({size:.0f} MB, median of {args.rounds})")
        for who, times in (("ripgrep, one thread", theirs), ("jobwatchdog replay", ours)):
            print(f"{who:22s} {statistics.median(times):8.2f} {size / statistics.median(times):8.0f}")
        print(f"ratio {ratio:.2f} (budget: at least {TARGET})")
        if args.log is None:
            small, large = peak_mb(part), peak_mb(log)
            print(f"peak memory {small:.0f} MB for a quarter of the log, {large:.0f} MB for all of it")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
