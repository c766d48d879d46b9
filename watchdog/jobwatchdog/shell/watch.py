"""One job under watch from start to end: launcher, agent, supervisor, ledger. A plain asyncio object."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from jobwatchdog.actuators import registry as actuator_registry
from jobwatchdog.actuators.local import records
from jobwatchdog.actuators.local.control import PidJob
from jobwatchdog.actuators.local.records import AttemptPhase, job_folder
from jobwatchdog.ledger import Ledger, LedgerError
from jobwatchdog.ledger.database import remember_url, url_of
from jobwatchdog.model import (
    ApprovalGiven,
    BreakerClosed,
    Decision,
    Job,
    JobId,
    Json,
    PlanId,
    Signal,
    Tick,
    codec,
)
from jobwatchdog.policy.load import load_policy
from jobwatchdog.policy.model import Policy
from jobwatchdog.shell.agents import AgentPort, HereAgent, make_agent
from jobwatchdog.shell.spec import WatchSpec, control_of
from jobwatchdog.shell.supervisor import Supervisor
from jobwatchdog.sources import procs

log = structlog.get_logger()

POLL_S: Final = 0.1
QUIET_S: Final = 3.0  # after a failure, this long without a decision means that none will come
REQUEST_S: Final = 0.5
UPDATES_MAX: Final = 10_000


class Watch:
    """Watches one job until it ends for good. `updates` tells what happened."""

    def __init__(self, spec: WatchSpec) -> None:
        self.spec = spec
        self.policies: list[Policy] = [load_policy(text, file) for file, text in spec.policies]
        self.control = control_of(spec)
        self.job_id = self.control.spec.job if self.control is not None else JobId(spec.name)
        self.folder = job_folder(Path(spec.state_dir).resolve(), self.job_id)
        self._updates: list[str] = []
        self._dropped = 0
        self._last_decision = time.monotonic()
        self._exit_code: int | None = None
        self._agent: AgentPort | None = None
        self._supervisor: Supervisor | None = None
        self._ledger: Ledger | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    # ---- life -----------------------------------------------------------------------------------

    async def start(self, agent: AgentPort | None = None) -> int:
        """Start (or find again) the job and everything around it; return the attempt that runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.spec.ledger_url:
            remember_url(self.folder, self.spec.ledger_url)
        self._ledger = await Ledger.open(url_of(self.folder))
        others = sorted({str(line.job.id) for line in await self._ledger.jobs()} - {str(self.job_id)})
        if others:  # one epoch a ledger: two supervisors would put each other out
            raise LedgerError(f"the ledger {self._ledger.where} is that of {others[0]}: each job needs one of its own")
        attempt = self.control.latest_attempt() if self.control is not None else 0
        self._supervisor = Supervisor(
            self._job(attempt),
            self.policies,
            self._ledger,
            actuator_registry.build("log" if self.control is None else "pid" if self.spec.pid else "local"),
            self.folder,
            control=self.control,
            checkpoint_paths=[Path(path) for path in self.spec.checkpoints],
            settle_s=self.spec.settle_s,
            on_decision=self._told,
            attempts=self,
        )
        if agent is None:
            agent = HereAgent(make_agent(self.spec, self.control, self.job_id, self.post))
        self._agent = agent
        await self._first_attempt(attempt)
        await self._supervisor.start()
        self._tasks = [
            asyncio.create_task(self._supervisor.run(), name=f"supervisor {self.job_id}"),
            asyncio.create_task(self._wait_end(), name=f"end of {self.job_id}"),
            asyncio.create_task(self._requests(), name=f"requests {self.job_id}"),
        ]
        return attempt

    async def close(self) -> None:
        """Stop watching; the job goes on."""
        if self._agent is not None:
            await self._agent.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ledger is not None:
            await self._ledger.close()

    def _job(self, attempt: int) -> Job:
        control = self.control
        launcher = "log" if control is None else "pid" if self.spec.pid is not None else "local"
        target = " ".join(control.spec.command) if control is not None else " ".join(self.spec.logs)
        return Job(
            id=self.job_id,
            launcher=launcher,
            target=target,
            name=self.spec.name,
            user=_user(),
            attempt=attempt,
            started_s=time.time(),
            labels=dict(self.spec.labels),
            can_restart=control is not None,
        )

    async def _first_attempt(self, attempt: int) -> None:
        assert self._agent is not None, "start() sets it"
        control = self.control
        if control is None:
            await self._agent.attempt_began(0, self.spec.logs)
            return
        if isinstance(control, PidJob) and attempt == 0:
            pids = [proc.pid for proc in control.processes(0)]
            await self._agent.attempt_began(0, procs.log_files([*pids, *procs.pipe_readers(pids)]))
            return
        if control.state(attempt).phase in (AttemptPhase.ABSENT, AttemptPhase.ABANDONED) and attempt == 0:
            await control.start(0, {})
        await self._agent.attempt_began(attempt, self._logs(attempt))

    def _logs(self, attempt: int) -> list[str]:
        assert self.control is not None, "only jobs with processes have attempts"
        folder = self.folder / f"attempt-{attempt}"
        spec = self.control.spec
        return [spec.stdout or str(folder / "stdout.log"), spec.stderr or str(folder / "stderr.log")]

    async def ended(self) -> None:
        """See Attempts."""
        if self._agent is not None:
            await self._agent.attempt_ended()

    async def began(self, attempt: int) -> None:
        """See Attempts."""
        if self._agent is not None and self.control is not None:
            await self._agent.attempt_began(attempt, self._logs(attempt))

    # ---- signals and decisions ------------------------------------------------------------------

    async def post(self, signals: Sequence[Signal]) -> None:
        """Take signals from an agent."""
        assert self._supervisor is not None, "started before its agent sends"
        if self._agent is not None and not self._tasks_failed():
            facts = await self._agent.facts()
            self._supervisor.rank_pids = dict(facts.rank_pids)
            self._supervisor.log_files = list(facts.log_files)
            self._supervisor.nccl_version = facts.libraries.nccl
            self._supervisor.torch_version = facts.libraries.torch
            self._supervisor.checkpoint_paths.update(dict.fromkeys(facts.checkpoint_paths))
        await self._supervisor.post(signals)

    def _tasks_failed(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def _told(self, decision: Decision) -> None:
        self._last_decision = time.monotonic()
        self._updates.append(codec.dumps(decision))
        if len(self._updates) > UPDATES_MAX:
            self._updates = self._updates[-UPDATES_MAX // 2 :]
            self._dropped += UPDATES_MAX // 2

    async def updates(self, after: int) -> tuple[int, list[str], int | None, dict[str, Json]]:
        """Return (next position, decisions as JSON since `after`, exit code once the job has ended, snapshot)."""
        fresh = self._updates[max(0, after - self._dropped) :]
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        snapshot = self._supervisor.snapshot() if self._supervisor is not None else {}
        return self._dropped + len(self._updates), fresh, self._exit_code, snapshot

    async def cancel_job(self, by: str) -> None:
        """Its user ends the job: pass the interrupt on; it is never restarted."""
        if self.control is not None:
            self.control.mark_cancelled(by)
            import signal as signals

            self.control.signal(self.control.latest_attempt(), signals.SIGINT)

    async def kill_job(self) -> None:
        """Its user insists."""
        if self.control is not None:
            self.control.mark_cancelled("its user")
            await self.control.stop(self.control.latest_attempt(), 0.0)

    # ---- the end --------------------------------------------------------------------------------

    async def _wait_end(self) -> None:
        """Note the exit code when the job has ended and nothing more will be done about it."""
        if self.control is None or self._supervisor is None:
            return
        ended_at: float | None = None
        attempt = -1
        while self._exit_code is None:
            await asyncio.sleep(POLL_S)
            try:
                latest = self.control.latest_attempt()
                state = self.control.state(latest)
                cancelled = self.control.cancelled() is not None
            except OSError:
                continue  # it cannot be seen now, which is no end
            if state.phase is not AttemptPhase.EXITED or latest != attempt:
                attempt, ended_at = latest, None
                if state.phase is not AttemptPhase.EXITED:
                    continue
            ended_at = ended_at or time.monotonic()
            if self._nothing_will_follow(ended_at, done=state.succeeded or cancelled):
                self._exit_code = _code(state.code, state.signal, cancelled=cancelled)

    def _nothing_will_follow(self, ended_at: float, *, done: bool) -> bool:
        supervisor = self._supervisor
        assert supervisor is not None, "asked for after start() only"
        if supervisor.busy():
            return False
        jobs = supervisor.snapshot().get("jobs")
        stage = jobs[0].get("stage") if isinstance(jobs, list) and jobs and isinstance(jobs[0], dict) else None
        quiet = time.monotonic() - max(ended_at, self._last_decision)
        if done:
            return stage == "ended" and quiet > 3 * POLL_S
        return stage in ("watching", "ended") and quiet > QUIET_S

    # ---- requests of people ---------------------------------------------------------------------

    async def _requests(self) -> None:
        """Approvals and closed breakers arrive as files in the job's folder: they survive both ends."""
        folder = self.folder / "requests"
        while True:
            with contextlib.suppress(OSError):  # looked for again
                for name in records.names(folder):
                    if name.endswith(".json"):
                        await self._request(folder / name)
            await asyncio.sleep(REQUEST_S)

    async def _request(self, path: Path) -> None:
        assert self._supervisor is not None, "requests are read after start() only"
        try:
            asked = json.loads(path.read_text())
            now_s, by = time.time(), str(asked.get("by", "somebody"))
            if "plan" in asked:
                plan, approved = PlanId(str(asked["plan"])), bool(asked.get("approved"))
                await self._supervisor.post_event(ApprovalGiven(now_s=now_s, plan=plan, approved=approved, by=by))
            elif "close_breaker" in asked:
                policy = str(asked["close_breaker"])
                await self._supervisor.post_event(BreakerClosed(now_s=now_s, policy=policy, by=by))
                await self._supervisor.post_event(Tick(now_s=now_s))
        except (OSError, ValueError) as error:
            log.warning("request.refused", path=str(path), error=str(error))
        path.unlink(missing_ok=True)


def _code(code: int | None, signal: int | None, *, cancelled: bool) -> int:
    if cancelled:
        return 130
    if signal:
        return 128 + signal
    return 1 if code is None else code


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())
