"""collect: what a person will want to see and what a kill destroys. It never holds up or fails the plan."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from jobwatchdog.actuators import process
from jobwatchdog.actuators.base import ActionContext, BaseActuator, Done
from jobwatchdog.linux import proctable
from jobwatchdog.model import Action, Json, Verb

TOOL_TIMEOUT_S = 5.0
ALL_TIMEOUT_S = 10.0
STACKS_MAX = 64  # processes; more ranks on one machine than that have more in common than apart
STACKS_AT_ONCE = 4
LOG_TAIL_BYTES = 256 << 10
FLIGHT_RECORDS_BYTES_MAX = 256 << 20
FRAME = re.compile(r"^ {4}(?P<frame>\S.*)$")


@dataclass(slots=True)
class Bundle:
    """The folder that is filled, and what went into it."""

    folder: Path
    files: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stacks: dict[str, list[str]] = field(default_factory=dict)

    def keep(self, name: str, text: str) -> None:
        """One more file."""
        (self.folder / name).write_text(text)
        self.files.append(name)


class CollectActuator(BaseActuator):
    """Stacks, process table, kernel log, GPU state, log tails, flight records: what is there within ten seconds."""

    verb = Verb.COLLECT
    touches = "nothing; writes a folder of its own"

    def describe(self, action: Action, ctx: ActionContext) -> str:
        """Where to."""
        return f"collect stacks and logs into {self._folder(action, ctx)}"

    @staticmethod
    def _folder(action: Action, ctx: ActionContext) -> Path:
        return ctx.folder / "bundles" / re.sub(r"[^A-Za-z0-9._=-]", "_", action.id)

    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """Every part is tried; a missing tool is a line in the receipt."""
        bundle = Bundle(self._folder(action, ctx))
        bundle.folder.mkdir(parents=True, exist_ok=True)
        bundle.keep("incident.json", json.dumps(ctx.incident_facts(), indent=1))
        begun = time.monotonic()
        parts: list[tuple[str, Callable[[Action, ActionContext, Bundle], Awaitable[None]]]] = [
            ("stacks", _stacks),
            ("kernel_log", _kernel_log),
            ("nvidia_smi", _gpu_state),
            ("nccl_flight_recorder", _flight_records),
            ("process table", _process_table),
            ("log tails", _log_tails),
        ]
        wanted = [(name, part) for name, part in parts if action.args.get(name) is not False]
        await asyncio.gather(*(_bounded(name, part(action, ctx, bundle), bundle) for name, part in wanted))
        data: dict[str, Json] = {
            "bundle": str(bundle.folder),
            "files": [*sorted(bundle.files)],
            "problems": [*bundle.problems],
            "stacks": {name: [*frames] for name, frames in bundle.stacks.items()},
            "took_s": round(time.monotonic() - begun, 3),
        }
        missing = f"; not collected: {'; '.join(bundle.problems)}" if bundle.problems else ""
        return Done(f"{len(bundle.files)} files in {bundle.folder}{missing}", data)


async def _bounded(name: str, part: Awaitable[None], bundle: Bundle) -> None:
    try:
        async with asyncio.timeout(ALL_TIMEOUT_S):
            await part
    except TimeoutError:
        bundle.problems.append(f"{name}: not done within {ALL_TIMEOUT_S:g} s")
    except Exception as bad:  # a bundle with a hole is better than no restart
        bundle.problems.append(f"{name}: {bad or type(bad).__name__}")


async def _stacks(action: Action, ctx: ActionContext, bundle: Bundle) -> None:
    """py-spy reads the memory of the process and does not pause it: also a stopped or hung one answers."""
    tool = Path(sys.executable).with_name("py-spy")
    program = str(tool) if tool.exists() else shutil.which("py-spy")
    if program is None:
        bundle.problems.append("stacks: py-spy is not installed")
        return
    gate = asyncio.Semaphore(STACKS_AT_ONCE)
    targets = _python_processes(action, ctx)
    await asyncio.gather(*(_one_stack(program, name, pid, gate, bundle) for name, pid in targets[:STACKS_MAX]))


def _python_processes(action: Action, ctx: ActionContext) -> list[tuple[str, int]]:
    """The ranks where they are known, else every Python of the job."""
    if ctx.rank_pids:
        return [(f"rank{rank}", pid) for rank, pid in sorted(ctx.rank_pids.items())]
    living = ctx.control.processes(action.attempt) if ctx.control else []
    found: list[tuple[str, int]] = []
    for proc in living:
        entries = dict(
            entry.partition(b"=")[::2] for entry in proctable.environ_bytes(proc.pid).split(b"\0") if b"=" in entry
        )
        rank = entries.get(b"RANK") or entries.get(b"SLURM_PROCID") or entries.get(b"OMPI_COMM_WORLD_RANK")
        if "python" in proc.name or rank is not None:
            found.append((f"rank{rank.decode()}-pid{proc.pid}" if rank else f"pid{proc.pid}", proc.pid))
    return found


async def _one_stack(program: str, name: str, pid: int, gate: asyncio.Semaphore, bundle: Bundle) -> None:
    async with gate:
        ended = await process.run([program, "dump", "--nonblocking", "--pid", str(pid)], timeout_s=TOOL_TIMEOUT_S)
    if ended.well:
        bundle.keep(f"stack-{name}.txt", ended.output)
        bundle.stacks[name] = main_thread(ended.output)
        return
    last = ended.output.strip().splitlines()[-1:] or [f"no answer within {TOOL_TIMEOUT_S:g} s"]
    hint = " (needs CAP_SYS_PTRACE or the same user)" if "ermission" in ended.output else ""
    bundle.problems.append(f"stack of {name} (pid {pid}): {last[0].strip()}{hint}")


def main_thread(dump: str) -> list[str]:
    """Frames of the main thread, innermost first; of the first thread where none is named so."""
    threads = re.split(r"(?m)^(?=Thread )", dump)[1:]
    chosen = next((t for t in threads if '"MainThread"' in t.split("\n", 1)[0]), threads[0] if threads else "")
    frames = [found["frame"] for line in chosen.splitlines() if (found := FRAME.match(line))]
    return frames[:40]


async def _process_table(action: Action, ctx: ActionContext, bundle: Bundle) -> None:
    living = ctx.control.processes(action.attempt) if ctx.control else []
    lines = ["pid ppid state name wchan"]
    for proc in living:
        try:
            wchan = (proctable.PROC / str(proc.pid) / "wchan").read_text() or "-"
        except OSError:
            wchan = "?"
        lines.append(f"{proc.pid} {proc.ppid} {proc.state} {proc.name} {wchan}")
    bundle.keep("processes.txt", "\n".join(lines) + "\n")


async def _kernel_log(action: Action, ctx: ActionContext, bundle: Bundle) -> None:
    await _tool(["dmesg", "--ctime"], "kernel.log", bundle, tail_lines=500)


async def _gpu_state(action: Action, ctx: ActionContext, bundle: Bundle) -> None:
    if shutil.which("nvidia-smi"):
        await _tool(["nvidia-smi", "-q"], "nvidia-smi.txt", bundle)


async def _tool(argv: list[str], name: str, bundle: Bundle, tail_lines: int | None = None) -> None:
    if shutil.which(argv[0]) is None:
        bundle.problems.append(f"{argv[0]} is not installed")
        return
    ended = await process.run(argv, timeout_s=TOOL_TIMEOUT_S, bytes_max=8 << 20)
    if not ended.well:
        bundle.problems.append(f"{argv[0]}: {ended.output.strip()[-200:] or 'no answer'}")
        return
    lines = ended.output.splitlines(keepends=True)
    bundle.keep(name, "".join(lines[-tail_lines:] if tail_lines else lines))


async def _log_tails(action: Action, ctx: ActionContext, bundle: Bundle) -> None:
    for number, path in enumerate(ctx.log_files[:STACKS_MAX]):
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                bundle.keep(f"log-{number}-{path.name}", log.read(LOG_TAIL_BYTES).decode(errors="replace"))
        except OSError as bad:
            bundle.problems.append(f"{path}: {bad.strerror}")


async def _flight_records(action: Action, ctx: ActionContext, bundle: Bundle) -> None:
    """PyTorch dumps `<prefix><rank>` when a collective times out; copied before the next attempt overwrites them."""
    env = ctx.control.spec.env if ctx.control else {}
    prefix = env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if prefix is None:
        return
    room = FLIGHT_RECORDS_BYTES_MAX
    for path in sorted(Path(prefix).parent.glob(Path(prefix).name + "*")):
        size = path.stat().st_size
        if path.is_file() and size <= room:
            room -= size
            await asyncio.to_thread(shutil.copy2, path, bundle.folder / path.name)
            bundle.files.append(path.name)
