"""A small real training job that can be told to break: two ranks, gloo, checkpoints, honest log lines.

    python -m jobwatchdog.testing.toy_train --nproc 2 --ckpt-dir ckpt --fault kill --fault-step 25
    torchrun --nproc-per-node 2 -m jobwatchdog.testing.toy_train --ckpt-dir ckpt --fault stop

Without RANK in its environment it starts its own ranks. A fault happens once: a marker beside the checkpoints
remembers it, so that the restarted job can go on (`bug` has none: a bug comes back at the same step).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from jobwatchdog.testing import toy_ranks

FAULTS = {
    "none": "a healthy run",
    "kill": "the rank is ended by SIGKILL",
    "stop": "the rank is stopped (SIGSTOP): the others wait in a collective, silently",
    "exc": "the rank raises a CUDA error",
    "oom": "the rank runs out of GPU memory",
    "oom-after-checkpoint": "the rank runs out of GPU memory in the step after a checkpoint",
    "nan": "the weights turn NaN and stay so",
    "spike": "the loss leaps to many times its value",
    "bug": "a NameError, at the same step in every attempt",
    "hang-on-restart": "the rank is killed, and the next attempt never reaches its first step",
    "corrupt-checkpoint": "the newest checkpoint is cut in half, then the rank is killed",
    "slow-checkpoint": "healthy: one checkpoint and one evaluation take --pause-s",
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; every one has a default that makes sense alone."""
    parser = argparse.ArgumentParser(prog="toy_train", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--nproc", type=int, default=2, help="ranks to start when not started by a launcher")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.2, help="least seconds a step")
    parser.add_argument("--ckpt-every", type=int, default=10)
    parser.add_argument("--ckpt-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--style", choices=["nanogpt", "megatron"], default="nanogpt", help="shape of the step lines")
    parser.add_argument("--backend", choices=["auto", "torch", "plain"], default="auto")
    parser.add_argument("--fault", choices=list(FAULTS), default="none")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--fault-step", type=int, default=25)
    parser.add_argument("--pause-s", type=float, default=8.0, help="length of the pauses of slow-checkpoint")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Is the launcher, or one rank of it."""
    args = parse(argv)
    if "RANK" not in os.environ:
        return launch(args.nproc, sys.argv[1:] if argv is None else list(argv))
    note_start(args.ckpt_dir)
    rank = int(os.environ["RANK"])
    train(args, rank, int(os.environ.get("WORLD_SIZE", "1")))
    return 0


def note_start(folder: Path) -> None:
    """One line a rank: pid and the second at which the kernel started it, for measurements of restarts."""
    folder.mkdir(parents=True, exist_ok=True)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    started_s = time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    with (folder / ".starts").open("a") as starts:
        starts.write(f"{os.getpid()} {started_s:.3f}\n")


# ---- the launcher -----------------------------------------------------------------------------------


def launch(n_ranks: int, argv: list[str]) -> int:
    """Starts the ranks on a port of this attempt's own; the first failure ends the others."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ranks = {}
    for rank in range(n_ranks):
        env = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), "LOCAL_WORLD_SIZE": str(n_ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        child = subprocess.Popen([sys.executable, "-m", "jobwatchdog.testing.toy_train", *argv], env=env)
        ranks[child.pid] = (rank, child)
    signal.signal(signal.SIGTERM, lambda *_: _end(ranks))
    return _await_ranks(ranks)


def _await_ranks(ranks: dict[int, tuple[int, subprocess.Popen[bytes]]]) -> int:
    """Exit code of the first rank that failed, 128 + signal where one ended it."""
    worst = 0
    while ranks:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid not in ranks:
            continue
        rank, child = ranks.pop(pid)
        child.returncode = code = os.waitstatus_to_exitcode(status)
        if code != 0 and worst == 0:
            how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
            print(f"toy_train: rank {rank} (pid {pid}) ended {how}; ending the others", file=sys.stderr, flush=True)
            worst = 128 - code if code < 0 else code
            _end(ranks)
    return worst


def _end(ranks: dict[int, tuple[int, subprocess.Popen[bytes]]]) -> None:
    for _, child in list(ranks.values()):
        child.terminate()


# ---- a rank -----------------------------------------------------------------------------------------


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    """The training loop, with its faults and its checkpoints."""
    args.ckpt_dir.mkdir(parents=True, exist_ok=True)
    faults = Faults(args, rank)
    backend = toy_ranks.make(args.backend, rank, world)
    if isinstance(backend, toy_ranks.PlainRank):
        sys.excepthook = PrefixedTraceback(rank)  # PyTorch brings its own
    faults.at_start()
    done = resume(args, backend, rank)
    for step in range(done + 1, args.steps + 1):
        begun = time.monotonic()
        faults.before(step, backend)
        loss, norm = backend.step(step)
        time.sleep(max(0.0, args.step_s - (time.monotonic() - begun)))
        report(args, rank, world, step, loss, norm, time.monotonic() - begun)
        if step % args.ckpt_every == 0:
            checkpoint(args, backend, rank, step)
    if rank == 0:
        print(f"training finished after step {args.steps}", flush=True)


def resume(args: argparse.Namespace, backend: toy_ranks.RankBackend, rank: int) -> int:
    """From where the watchdog says (empty: from scratch), else from the newest checkpoint; 0 where there is none."""
    told = os.environ.get("JOBWATCHDOG_RESUME_FROM")
    newest = max(args.ckpt_dir.glob(f"step-*{backend.suffix}"), default=None)
    path = newest if told is None else Path(told) if told else None
    if path is None:
        return 0
    step = backend.load(path)
    if rank == 0:
        print(f"resumed from checkpoint {path} at step {step}", flush=True)
    return step


def checkpoint(args: argparse.Namespace, backend: toy_ranks.RankBackend, rank: int, step: int) -> None:
    """Rank 0 saves; the others meet it again in the next step's collective."""
    if rank != 0:
        return
    print(f"saving checkpoint at iteration {step:7d} to {args.ckpt_dir} in torch format", flush=True)
    if args.fault == "slow-checkpoint" and step == args.ckpt_every * 2:
        time.sleep(args.pause_s)
    backend.save(args.ckpt_dir / f"step-{step:06d}{backend.suffix}", step)
    print(f"  successfully saved checkpoint from iteration {step:7d} to {args.ckpt_dir}", flush=True)


def report(args: argparse.Namespace, rank: int, world: int, step: int, loss: float, norm: float, took_s: float) -> None:
    """One step line in the shape of a framework: nanoGPT prints on the first rank, Megatron on the last."""
    if args.style == "nanogpt" and rank == 0:
        print(f"iter {step}: loss {loss:.4f}, time {took_s * 1000:.2f}ms, mfu -100.00%", flush=True)
    if args.style == "megatron" and rank == world - 1:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        loss_field = f" lm loss: {loss:.6E} |" if loss >= 0 else ""  # as Megatron does: NaN makes the field vanish
        print(
            f" [{now}] iteration {step:8d}/{args.steps:8d} | consumed samples: {step * 128:12d} | elapsed time per "
            f"iteration (ms): {took_s * 1000:.1f} | learning rate: 2.000000E-02 | global batch size: {128:5d} |"
            f"{loss_field} loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 | "
            f"number of nan iterations:   0 |",
            flush=True,
        )


class Faults:
    """The one fault of this run. Its marker is written just before it happens."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self._args, self._rank = args, rank
        self._marker = args.ckpt_dir / ".fault-fired"
        self._fired = self._marker.exists()

    def at_start(self) -> None:
        """The restart that hangs: once, then the job starts well again."""
        hung = self._args.ckpt_dir / ".hang-fired"
        concerned = self._args.fault == "hang-on-restart" and self._rank == self._args.fault_rank
        if concerned and self._fired and not hung.exists():
            hung.touch()
            time.sleep(86_400)

    def before(self, step: int, backend: toy_ranks.RankBackend) -> None:
        """Breaks the step if it is time."""
        fault = self._args.fault
        if fault == "slow-checkpoint" and step == self._args.fault_step:
            self._evaluate()
        if self._rank != self._args.fault_rank or step < self._args.fault_step or self._fired:
            return
        if fault in ("none", "slow-checkpoint"):
            return
        if fault == "oom-after-checkpoint" and (step - 1) % self._args.ckpt_every != 0:
            return
        if fault != "bug":
            self._fired = True
            self._marker.write_text(f"{fault} {step} {time.time():.6f}\n")
        self._break(fault, step, backend)

    def _break(self, fault: str, step: int, backend: toy_ranks.RankBackend) -> None:
        if fault == "corrupt-checkpoint":
            newest = max(self._args.ckpt_dir.glob(f"step-*{backend.suffix}"), default=None)
            if newest is not None:
                os.truncate(newest, newest.stat().st_size // 2)
        if fault in ("kill", "hang-on-restart", "corrupt-checkpoint"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "exc":
            raise RuntimeError("CUDA error: unspecified launch failure")
        elif fault in ("oom", "oom-after-checkpoint"):
            raise backend.out_of_memory()
        elif fault == "nan":
            backend.damage(float("nan"))
        elif fault == "spike":
            backend.damage(12.0)
        elif fault == "bug":
            exec(compile("loss = criterion(logits, lables)", "train_step.py", "exec"), {"criterion": max, "logits": 0})  # noqa: S102

    def _evaluate(self) -> None:
        if self._rank == 0:
            print(f"Evaluating on validation set at iteration {self._args.fault_step}", flush=True)
        time.sleep(self._args.pause_s)
        if self._rank == 0:
            print(f"step {self._args.fault_step}: train loss 1.6000, val loss 1.6100", flush=True)


class PrefixedTraceback:
    """Prints an uncaught error with the rank before each line, as torch.distributed does."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __call__(self, kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, where))
        sys.stderr.write("".join(f"[rank{self._rank}]: {line}\n" for line in text.rstrip().splitlines()))


if __name__ == "__main__":
    sys.exit(main())
