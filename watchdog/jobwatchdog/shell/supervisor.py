"""The loop around the engine: signals in, decisions carried out, everything recorded first."""

from __future__ import annotations

import asyncio
import os
import signal as signals
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from jobwatchdog import bundled, plugins
from jobwatchdog.actuators.base import ActionContext, Actuator
from jobwatchdog.actuators.local.control import JobControl
from jobwatchdog.engine import Engine
from jobwatchdog.incidents import CausalTable
from jobwatchdog.ledger import Ledger, LedgerError, StaleEpoch
from jobwatchdog.model import (
    Action,
    ActionFinished,
    ActionOrdered,
    ActionStarted,
    ApprovalWanted,
    Decision,
    DetectorFailed,
    Event,
    HistoryLoaded,
    Incident,
    IncidentChanged,
    IncidentId,
    Job,
    JobRegistered,
    Json,
    Kind,
    Outcome,
    Plan,
    PlanMade,
    PlanRefused,
    Receipt,
    Signal,
    SignalsObserved,
    Tick,
    Verb,
)
from jobwatchdog.policy.model import Policy

log = structlog.get_logger()

RESOLVE_TRIES: Final = 20
RESOLVE_WAIT_S: Final = 1.0
QUEUE_MAX: Final = 10_000  # lists of signals
LEDGER_RETRY_S: Final = 1.0

T = TypeVar("T")

OnDecision = Callable[[Decision], Awaitable[None]]


class Attempts(Protocol):
    """Who must know when one attempt of the job follows another."""

    async def ended(self) -> None:
        """Nothing of the old attempt runs any more: what it wrote is still to be told as its own."""

    async def began(self, attempt: int) -> None:
        """The new one runs."""


def crash_at(point: str) -> None:
    """Test aid: end this process as `kill -9` would, at a named point (JOBWATCHDOG_CRASH_AT, see docs/ledger.md)."""
    if os.environ.get("JOBWATCHDOG_CRASH_AT") == point:
        os.kill(os.getpid(), signals.SIGKILL)


class Supervisor:
    """Owns the engine of one job's ledger. A plain asyncio object; actors are one way to host it."""

    def __init__(
        self,
        job: Job,
        policies: Sequence[Policy],
        ledger: Ledger,
        actuators: Mapping[Verb, Actuator],
        folder: Path,
        *,
        control: JobControl | None = None,
        checkpoint_paths: Sequence[Path] = (),
        settle_s: float = 0.3,
        on_decision: OnDecision | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        self.job = job
        self.engine = Engine(
            plugins.detectors_for(),
            CausalTable.parse(bundled.causal_table_text()),
            policies,
            settle_s=settle_s,
        )
        self.checkpoint_paths: dict[str, None] = {str(path): None for path in checkpoint_paths}
        self.rank_pids: dict[int, int] = {}
        self.log_files: list[str] = []
        self.nccl_version: tuple[int, ...] | None = None
        self.torch_version: tuple[int, ...] | None = None
        self._ledger = ledger
        self._actuators = actuators
        self._folder = folder
        self._control = control
        self._on_decision = on_decision
        self._attempts = attempts
        self._endpoints = _endpoints(policies)
        self._queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE_MAX)
        self._incidents: dict[IncidentId, Incident] = {}
        self._plans: dict[str, Plan] = {}
        self._acting: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._clock = _Clock()

    # ---- from outside ---------------------------------------------------------------------------

    async def post(self, found: Sequence[Signal]) -> None:
        """Take a list of signals; waits while the queue is full."""
        await self._queue.put(SignalsObserved(now_s=self._clock.now(), signals=tuple(found)))

    async def post_event(self, event: Event) -> None:
        """Take one event as it is."""
        await self._queue.put(event)

    def busy(self) -> bool:
        """Whether an action runs or events wait."""
        return bool(self._acting) or not self._queue.empty()

    def snapshot(self) -> dict[str, Json]:
        """Return what `status` shows."""
        return self.engine.snapshot()

    # ---- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the epoch, remember the past, look at what an earlier life left undone."""
        await self._ledger.take_epoch(f"{os.uname().nodename}:{os.getpid()}")
        past = await self._ledger.history(self.job.id)
        await self._handle(JobRegistered(now_s=self._clock.now(), job=self.job))
        if past:
            await self._handle(HistoryLoaded(now_s=self._clock.now(), job=self.job.id, past=tuple(past)))
        for one in past:
            if one.outcome is None or one.outcome is Outcome.UNKNOWN:
                self._spawn(self._resolve(one.action), f"resolve {one.action.key}")

    async def run(self) -> None:
        """Handle events and deadlines until cancelled."""
        while True:
            try:
                await self._handle(await self._next())
            except StaleEpoch:
                log.error("supervisor.replaced", job=self.job.id, reason="a newer supervisor took over; this one stops")
                raise

    async def _next(self) -> Event:
        due = self.engine.next_deadline_s()
        try:
            if due is None:
                return await self._queue.get()
            async with asyncio.timeout(max(0.0, due - self._clock.now())):
                return await self._queue.get()
        except TimeoutError:
            return Tick(now_s=self._clock.now())

    async def settle(self, limit_s: float = 5.0) -> None:
        """Wait until what is queued is handled and no action runs."""
        deadline = time.monotonic() + limit_s
        while self.busy() and time.monotonic() < deadline:  # noqa: ASYNC110 - two things must be still at once
            await asyncio.sleep(0.02)

    # ---- the engine -----------------------------------------------------------------------------

    async def _handle(self, event: Event) -> None:
        decisions = self.engine.handle(event)
        story: list[Event | Decision] = [*([] if isinstance(event, SignalsObserved | Tick) else [event]), *decisions]
        if story:
            await self._durably(lambda: self._ledger.record(story))
        for decision in decisions:
            await self._carry_out(decision)

    async def _durably(self, write: Callable[[], Awaitable[T]]) -> T:
        """Nothing follows before the ledger has it: while it cannot be written the job goes on, and we wait."""
        told = ""
        while True:
            try:
                return await write()
            except StaleEpoch:
                raise
            except LedgerError as error:
                if told != str(error):
                    told = str(error)
                    log.error("ledger.failed", job=self.job.id, error=told)
                await asyncio.sleep(LEDGER_RETRY_S)

    async def _carry_out(self, decision: Decision) -> None:
        match decision:
            case IncidentChanged(incident=incident, why=why):
                self._incidents[incident.id] = incident
                log.info("incident.changed", job=incident.job, incident=incident.id, kind=incident.kind.value,
                         state=incident.state.value, why=why)  # fmt: skip
            case PlanMade(plan=plan):
                self._plans[plan.id] = plan
                log.info("plan.made", job=plan.job, plan=plan.id, rule=plan.rule, rung=plan.rung, mode=plan.mode.value)
            case PlanRefused(incident=incident_id, checks=checks):
                failed = next((check for check in checks if not check.passed), None)
                log.info(
                    "plan.refused", job=self.job.id, incident=incident_id, because=failed.because if failed else ""
                )
            case ApprovalWanted(plan=plan):
                log.warning("plan.approval_wanted", job=plan.job, plan=plan.id)
            case DetectorFailed(detector=detector, error=error):
                log.error("detector.failed", job=self.job.id, detector=detector, error=error)
            case ActionOrdered(action=action):
                await self._order(action)
        if self._on_decision is not None:
            await self._on_decision(decision)

    # ---- acting ---------------------------------------------------------------------------------

    async def _order(self, action: Action) -> None:
        """Intent first, durable; then the act."""
        plan = self._plans.get(action.plan)
        incident = self._incidents.get(action.incident)
        kind = incident.kind if incident else Kind.UNKNOWN_FAILURE
        policy, rule, rung = (plan.policy, plan.rule, plan.rung) if plan else ("", "", 1)
        now_s = self._clock.now()
        crash_at("before_intent")
        mine = await self._durably(
            lambda: self._ledger.intend(action, policy=policy, rule=rule, rung=rung, kind=kind, now_s=now_s)
        )
        crash_at("after_intent")
        work = self._act(action) if mine else self._intended_before(action)
        self._spawn(work, f"act {action.key}")

    async def _intended_before(self, action: Action) -> None:
        """The key was given before: to this very action (its write was not confirmed), or to another."""
        past = await self._durably(lambda: self._ledger.history(self.job.id))
        holder = next((one for one in reversed(past) if one.action.key == action.key), None)
        if holder is None or holder.action.id == action.id:
            await self._resolve(action)
            return
        end = holder.outcome.value if holder.outcome else "its end is not known yet"
        now_s = time.time()
        await self._tell_finished(
            Receipt(action=action.id, outcome=Outcome.SKIPPED, started_s=now_s, finished_s=now_s,
                    detail=f"{action.key} was carried out before, as {holder.action.id} ({end}): not a second time")
        )  # fmt: skip

    def _spawn(self, work: Awaitable[None], name: str) -> None:
        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.error("action.crashed", job=self.job.id, action=name, error=f"{type(error).__name__}: {error}")

        task = asyncio.create_task(guarded(), name=name)
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)

    async def _act(self, action: Action) -> None:
        await self._queue.put(ActionStarted(now_s=self._clock.now(), action=action.id))
        log.info("action.started", job=action.job, action=action.id, verb=action.verb.value, key=action.key)
        receipt = await self._actuators[action.verb].run(action, self._context(action))
        crash_at("after_act")
        await self._finished(action, receipt)

    async def _resolve(self, action: Action) -> None:
        """An intent without a receipt: look whether it happened; run it only where looking says that it did not."""
        for _ in range(RESOLVE_TRIES):
            receipt = await self._look(action)
            if receipt is not None and receipt.outcome is not Outcome.UNKNOWN:
                await self._finished(action, receipt)
                return
            if receipt is not None and receipt.data.get("repeatable") is True:
                log.info("action.resumed", job=action.job, action=action.id, why=receipt.detail)
                await self._act(replace(action, not_after_s=None))
                return
            await asyncio.sleep(RESOLVE_WAIT_S)
        log.error("action.unresolved", job=action.job, action=action.id, verb=action.verb.value,
                  detail=receipt.detail if receipt else "")  # fmt: skip

    async def _look(self, action: Action) -> Receipt | None:
        """None: it could not be looked at now, which says nothing."""
        try:
            return await self._actuators[action.verb].resolve(action, self._context(action))
        except Exception as error:
            log.warning("action.unseen", job=action.job, action=action.id, error=f"{type(error).__name__}: {error}")
            return None

    async def _finished(self, action: Action, receipt: Receipt) -> None:
        crash_at("before_receipt")
        await self._durably(lambda: self._ledger.receipt(receipt))
        crash_at("after_receipt")
        log.info("action.finished", job=action.job, action=action.id, verb=action.verb.value,
                 outcome=receipt.outcome.value, detail=receipt.detail)  # fmt: skip
        attempt = receipt.data.get("new_attempt")
        if receipt.outcome is Outcome.DONE and isinstance(attempt, int) and attempt > self.job.attempt:
            await self._new_attempt(attempt)
        await self._tell_finished(receipt)

    async def _tell_finished(self, receipt: Receipt) -> None:
        await self._queue.put(ActionFinished(now_s=self._clock.now(), receipt=receipt))

    async def _new_attempt(self, attempt: int) -> None:
        """In this order: the last words of the old attempt must not count as the new one's."""
        if self._attempts is not None:
            await self._attempts.ended()
        self.job = replace(self.job, attempt=attempt, started_s=self._clock.now(), ranks=())
        await self._queue.put(JobRegistered(now_s=self._clock.now(), job=self.job))
        if self._attempts is not None:
            await self._attempts.began(attempt)

    def _context(self, action: Action) -> ActionContext:
        return ActionContext(
            job=self.job,
            folder=self._folder,
            incident=self._incidents.get(action.incident),
            control=self._control,
            checkpoint_paths=tuple(Path(path) for path in self.checkpoint_paths),
            rank_pids=dict(self.rank_pids),
            log_files=tuple(Path(path) for path in self.log_files),
            nccl_version=self.nccl_version,
            torch_version=self.torch_version,
            endpoints=self._endpoints,
        )


class _Clock:
    """Wall time that never runs backwards and never jumps: an NTP step is no hang."""

    def __init__(self) -> None:
        self._wall = time.time()
        self._mono = time.monotonic()

    def now(self) -> float:
        return self._wall + time.monotonic() - self._mono


def _endpoints(policies: Sequence[Policy]) -> dict[str, str | Sequence[str]]:
    found: dict[str, str | Sequence[str]] = {}
    for policy in policies:
        for name, target in policy.spec.notify.items():
            found[name] = target.webhook or target.command or ""
    return found
