"""The eyes on one machine: follows logs and rank processes, matches at the edge, sends lists of signals."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from jobwatchdog.actuators.local.control import JobControl
from jobwatchdog.actuators.local.records import AttemptPhase, AttemptState
from jobwatchdog.linux.pidfd import Ended
from jobwatchdog.model import (
    JobId,
    JobPhase,
    JobStateSeen,
    Origin,
    OutputSeen,
    PhaseChanged,
    ProcessSeen,
    ProcState,
    Signal,
    SourceLost,
)
from jobwatchdog.signals.scanner import Scanner, Stream, StreamInfo
from jobwatchdog.sources import libraries, procs
from jobwatchdog.sources.exits import Exit, Exits
from jobwatchdog.sources.libraries import Libraries
from jobwatchdog.sources.tail import Blocks, Position, Tailer

log = structlog.get_logger()

SAMPLE_S: Final = 0.2  # between looks at the job's state and its rank processes
SEARCH_S: Final = 1.0  # between searches for rank processes and log files
OUTPUT_S: Final = 1.0  # at most one "output grew" a stream in this time
PENDING_MAX: Final = 200_000  # signals kept while the supervisor is away; older ones are dropped and counted
REST_S_MAX: Final = 1.0  # for the rest of the logs of an attempt that has ended
POLL_S: Final = 0.01
SEND_S: Final = 0.05  # signals gather this long before a list is sent

Send = Callable[[Sequence[Signal]], Awaitable[None]]

_PHASES: Final = {
    AttemptPhase.RUNNING: JobPhase.RUNNING,
    AttemptPhase.STARTING: JobPhase.RUNNING,
    AttemptPhase.UNSEEN: JobPhase.UNKNOWN,
}


class NodeAgent:
    """Watches one job on this machine. `control` is None where there are only logs."""

    def __init__(self, job: JobId, scanner: Scanner, send: Send, control: JobControl | None = None) -> None:
        self.job = job
        self.dropped = 0
        self._scanner = scanner
        self._send = send
        self._control = control
        self._attempt = 0
        self._pending: list[Signal] = []
        self._wake = asyncio.Event()
        self._streams: dict[str, Stream] = {}
        self._output_at: dict[str, float] = {}
        self._ranks: list[procs.RankProcess] = []
        self._gone: set[tuple[int, int]] = set()
        self._state: tuple[int, JobPhase] | None = None
        self._rank_failed = False  # of this attempt: a rank was seen to end badly
        self._libraries = Libraries()
        self._exits = Exits(self._on_exit)
        self._blind = ""  # why processes cannot be seen now
        self._logs: tuple[str, ...] = ()  # of this attempt
        self._left_at: dict[str, Position] = {}  # how far each log was scanned, of former attempts too
        self._tail = Tailer(self._on_blocks, self._on_lost)
        self.checkpoint_paths: dict[str, None] = {}

    # ---- what to watch --------------------------------------------------------------------------

    def follow(self, path: str, *, from_start: bool = True) -> None:
        """Follow a log file, or the files of a pattern; a file followed before goes on where it was left."""
        if any(mark in path for mark in "*?["):
            self._tail.add_glob(path)
            return
        info = StreamInfo(path, job=self.job, hint_s=time.time())
        self._tail.add(path, info, from_start=from_start, at=self._left_at.get(path))

    async def attempt_ended(self) -> None:
        """Nothing of it runs any more: send what its logs still held, and close them."""
        deadline = time.monotonic() + REST_S_MAX
        while time.monotonic() < deadline and await asyncio.to_thread(self._unread):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(POLL_S)
        for path, at in self._tail.positions().items():
            self._left_at.setdefault(path, at)  # followed from its end, and nothing came
        for path in self._logs:
            self._tail.remove(path)
            if (stream := self._streams.pop(path, None)) is not None:
                self._put(self._scanner.finish(stream))
        self._logs = ()
        await self._flush()

    def _unread(self) -> bool:
        return any(_size(path) > self._offset(path) for path in self._logs)

    def _offset(self, path: str) -> int:
        at = self._left_at.get(path)
        return at.offset if at is not None else 0

    def attempt_began(self, attempt: int, logs: Sequence[Path]) -> None:
        """A new attempt runs: its processes and logs are looked for anew."""
        self._attempt = attempt
        self._ranks, self._state, self._rank_failed = [], None, False
        self._logs = tuple(str(path) for path in logs)
        for path in self._logs:
            self.follow(path)

    def followed(self) -> list[str]:
        """Return the log files."""
        return self._tail.paths()

    def rank_pids(self) -> dict[int, int]:
        """Return rank → pid, as far as known."""
        return {one.rank: one.pid for one in self._ranks}

    def libraries(self) -> Libraries:
        """Return what the ranks have loaded, as far as seen."""
        return self._libraries

    # ---- loops ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled or stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tail.run(), name=f"tail {self.job}")
            sender = group.create_task(self._send_loop(), name=f"send {self.job}")
            watcher = None
            if self._control is not None:
                watcher = group.create_task(self._watch_loop(self._control), name=f"processes {self.job}")
            self._stopped = asyncio.Event()
            await self._stopped.wait()
            self._tail.stop()
            self._exits.close()
            if watcher is not None:
                watcher.cancel()
            await asyncio.sleep(2 * SEND_S)
            sender.cancel()

    def stop(self) -> None:
        """End `run` after a last look."""
        if hasattr(self, "_stopped"):
            self._stopped.set()

    async def _send_loop(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(SEND_S)
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        batch, self._pending = self._pending, []
        if not batch:
            return
        try:
            await self._send(batch)
        except Exception as error:
            # The supervisor is away: keep the newest, it will be back.
            self._pending = (batch + self._pending)[-PENDING_MAX:]
            log.warning("agent.send_failed", job=self.job, error=f"{type(error).__name__}: {error}")
            self._wake.set()
            await asyncio.sleep(0.5)

    def _put(self, signals: Sequence[Signal]) -> None:
        self._pending.extend(signals)
        if len(self._pending) > PENDING_MAX:
            self.dropped += len(self._pending) - PENDING_MAX
            self._pending = self._pending[-PENDING_MAX:]
        self._wake.set()

    # ---- logs -----------------------------------------------------------------------------------

    async def _on_blocks(self, blocks: Blocks) -> None:
        now = time.time()
        for info, data, begins, source, at in blocks:
            if source.removed:
                continue  # while the blocks before it were scanned; a later following begins where scanning ended
            stream = self._streams.get(info.file)
            if begins and stream is not None:  # another file under the same name: lines are counted anew
                self._put(self._scanner.finish(self._streams.pop(info.file)))
                stream = None
            if stream is None:
                known = info if info.job == self.job else replace(info, job=self.job, hint_s=now)
                stream = self._streams[info.file] = self._scanner.open(known)
            stream.times.hint_s = now
            self._left_at[info.file] = at
            found = self._scanner.feed(stream, data)
            for signal in found:
                if isinstance(signal, PhaseChanged) and signal.path:
                    self.checkpoint_paths[signal.path] = None
            self._put(found)
            if now - self._output_at.get(info.file, 0.0) >= OUTPUT_S:
                self._output_at[info.file] = now
                self._put([OutputSeen(job=self.job, t_s=now, origin=stream.origin, n_bytes=len(data))])
            await asyncio.sleep(0)

    async def _on_lost(self, lost: SourceLost) -> None:
        log.warning("agent.source_lost", job=self.job, source=lost.source, reason=lost.reason)
        self._put([replace(lost, job=self.job)])

    # ---- processes ------------------------------------------------------------------------------

    async def _watch_loop(self, control: JobControl) -> None:
        next_search = 0.0
        while True:
            self._exits.watch(self._ranks)
            now = time.monotonic()
            search = now >= next_search
            if search:
                next_search = now + SEARCH_S
            try:
                signals = await asyncio.to_thread(self._look, control, search)
                self._blind = ""
            except OSError as error:
                signals = []
                if self._blind != str(error):  # once, not five times a second
                    self._blind = str(error)
                    await self._on_lost(SourceLost(job=self.job, source="processes", reason=str(error)))
            if signals:
                self._put(signals)
            await asyncio.sleep(SAMPLE_S)

    def _on_exit(self, end: Exit) -> None:
        """At once, with the very moment: in a sample several ranks may be gone together."""
        one = end.process
        if one not in self._ranks:
            return  # of an attempt that was replaced
        self._gone.add((one.pid, one.ticks))
        self._rank_failed |= end.how is not None and end.how.badly
        origin = Origin(rank=one.rank, local_rank=one.local_rank, pid=one.pid)
        how = end.how or Ended()
        self._put([ProcessSeen(job=self.job, t_s=end.t_s, origin=origin, state=ProcState.GONE, exit_code=how.code,
                               exit_signal=how.signal)])  # fmt: skip

    def _look(self, control: JobControl, search: bool) -> list[Signal]:
        attempt, now_s = self._attempt, time.time()
        if search or not self._ranks:
            pids = [proc.pid for proc in control.processes(attempt)]
            for one in procs.rank_processes(pids):
                if all((known.pid, known.ticks) != (one.pid, one.ticks) for known in self._ranks):
                    self._ranks.append(one)
        found: list[Signal] = []
        for one in list(self._ranks):
            seen = procs.seen(one, self.job, now_s)
            if seen is None:
                continue  # unknown is not dead
            if seen.state is ProcState.GONE:
                if self._exits.watches(one):
                    continue  # told with its moment and its status as soon as both are known
                self._ranks.remove(one)
                if (one.pid, one.ticks) in self._gone:
                    continue
                self._gone.add((one.pid, one.ticks))
            found.append(seen)
        if search and self._ranks and self._libraries.torch is None:
            self._libraries = libraries.loaded(self._ranks[0].pid)
        if not self._ranks and not found:
            found += self._whole_job(control, attempt, now_s)
        state = control.state(attempt)
        if (said := self._said(control, attempt, state, now_s)) is not None:
            found.append(said)
        return found if attempt == self._attempt else []

    def _whole_job(self, control: JobControl, attempt: int, now_s: float) -> list[Signal]:
        """Without ranks in the environment the job itself is the one rank that is known."""
        living = control.processes(attempt)
        if not living:
            return []
        root = procs.RankProcess(0, living[0].pid, living[0].ticks, None, None)
        seen = procs.seen(root, self.job, now_s)
        return [] if seen is None else [replace(seen, origin=Origin(pid=root.pid))]

    def _said(self, control: JobControl, attempt: int, state: AttemptState, now_s: float) -> JobStateSeen | None:
        phase = _PHASES.get(state.phase)
        if phase is None and state.phase is not AttemptPhase.EXITED:
            return None  # not started yet: neither running nor ended
        if phase is None:
            phase = JobPhase.SUCCEEDED if state.succeeded else JobPhase.FAILED
            if control.cancelled() is not None:
                phase = JobPhase.CANCELLED
            elif state.foreign and not self._rank_failed:
                phase = JobPhase.UNKNOWN  # only its parent was told how it ended
        if self._state == (attempt, phase):
            return None
        self._state = (attempt, phase)
        return JobStateSeen(
            job=self.job,
            t_s=now_s,
            state=phase,
            attempt=attempt,
            exit_code=state.code,
            exit_signal=state.signal,
            detail=state.detail or "",
        )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # gone: nothing more can be read of it


def host_name() -> str:
    """Return this machine's short name."""
    return os.uname().nodename.split(".")[0]


__all__ = ["NodeAgent", "ProcessSeen", "host_name"]
