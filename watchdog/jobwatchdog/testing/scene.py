"""An engine on a stage: events in the order of their time, ticks where the engine wants them, invariants throughout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from jobwatchdog.engine import Engine
from jobwatchdog.model import (
    Action,
    ActionFinished,
    ActionOrdered,
    ApprovalGiven,
    ApprovalWanted,
    Decision,
    Event,
    Job,
    JobId,
    JobPhase,
    JobRegistered,
    JobStateSeen,
    Json,
    Kind,
    LogMatch,
    Origin,
    Outcome,
    PlanId,
    ProcessSeen,
    ProcState,
    Receipt,
    Role,
    SignalsObserved,
    StepReport,
    Tick,
)
from jobwatchdog.testing.invariants import InvariantBroken, Invariants

JOB: Final = JobId("job")
TICKS_MAX: Final = 100_000


@dataclass
class Scene:
    """One job under one engine. Each method is something that happened, and returns what the engine decided."""

    engine: Engine
    invariants: Invariants = field(default_factory=Invariants)
    job: JobId = JOB
    now_s: float = 0.0
    attempt: int = 0
    decisions: list[Decision] = field(default_factory=list)
    in_flight: Action | None = None
    asked: PlanId | None = None
    on_decision: Callable[[Decision], None] | None = None

    # ---- time and events ------------------------------------------------------------------------

    def feed(self, event: Event) -> list[Decision]:
        """One event, without ticks before it."""
        made = self.engine.handle(event)
        self.invariants.saw(event, made)
        for decision in made:
            self._remember(decision)
        return made

    def _remember(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if isinstance(decision, ActionOrdered):
            self.in_flight = decision.action
        elif isinstance(decision, ApprovalWanted):
            self.asked = decision.plan.id
        if self.on_decision is not None:
            self.on_decision(decision)

    def until(self, now_s: float) -> list[Decision]:
        """Let time pass, with a tick whenever the engine asked for one."""
        made: list[Decision] = []
        for _ in range(TICKS_MAX):
            due = self.engine.next_deadline_s()
            if due is None or due > now_s:
                break
            if due <= self.now_s:
                due = self.now_s  # overdue: the tick must settle it
            self.now_s = due
            made += self.feed(Tick(now_s=due))
            again = self.engine.next_deadline_s()
            if again is not None and again <= due:
                raise InvariantBroken(f"at {due:.3f}: after a tick the engine still wants one at {again:.3f}")
        self.now_s = max(self.now_s, now_s)
        return made

    def at(self, now_s: float, event: Event) -> list[Decision]:
        """Let time pass, then one event."""
        return self.until(now_s) + self.feed(event)

    # ---- things that happen ---------------------------------------------------------------------

    def registered(
        self, now_s: float = 0.0, attempt: int = 0, labels: Mapping[str, str] | None = None
    ) -> list[Decision]:
        """The job is under watch, or a new attempt of it runs."""
        self.attempt = attempt
        job = Job(
            id=self.job, launcher="local", target="train.py", attempt=attempt, started_s=now_s,
            world_size=2, labels=dict(labels or {}), can_restart=True,
        )  # fmt: skip
        return self.at(now_s, JobRegistered(now_s=now_s, job=job))

    def step(self, now_s: float, number: int, loss: float = 2.0) -> list[Decision]:
        """Rank 0 reports a step."""
        signal = StepReport(job=self.job, framework="test", step=number, loss=loss, origin=Origin(rank=0))
        return self.at(now_s, SignalsObserved(now_s=now_s, signals=(signal,)))

    def steps(self, start_s: float, first: int, last: int, every_s: float = 1.0) -> list[Decision]:
        """A stretch of training."""
        made: list[Decision] = []
        for i, number in enumerate(range(first, last + 1)):
            made += self.step(start_s + i * every_s, number)
        return made

    def match(
        self,
        now_s: float,
        kind: Kind,
        *,
        rank: int | None = None,
        role: Role = Role.CAUSE,
        text: str = "",
        line: int = 1,
    ) -> list[Decision]:
        """A line of the log that a signature knows."""
        fields = {} if rank is None else {"rank": str(rank)}
        signal = LogMatch(
            job=self.job, signature=f"test-{kind}", kind=kind, role=role, text=text or f"something about {kind}",
            fields=fields, origin=Origin(file="train.log", line=line, rank=rank),
        )  # fmt: skip
        return self.at(now_s, SignalsObserved(now_s=now_s, signals=(signal,)))

    def alive(self, now_s: float) -> list[Decision]:
        """The operating system shows both ranks at work."""
        seen = tuple(
            ProcessSeen(job=self.job, state=ProcState.RUNNING, cpu_s=now_s, origin=Origin(rank=rank, pid=100 + rank))
            for rank in range(2)
        )
        return self.at(now_s, SignalsObserved(now_s=now_s, signals=seen))

    def state(self, now_s: float, state: JobPhase, exit_code: int | None = None) -> list[Decision]:
        """The launcher says how the attempt is."""
        signal = JobStateSeen(job=self.job, state=state, attempt=self.attempt, exit_code=exit_code)
        return self.at(now_s, SignalsObserved(now_s=now_s, signals=(signal,)))

    def receipt(self, now_s: float, outcome: Outcome, detail: str = "", **data: Json) -> list[Decision]:
        """The action in flight ended."""
        made = self.until(now_s)
        assert self.in_flight is not None, "no action is in flight"
        receipt = Receipt(action=self.in_flight.id, outcome=outcome, detail=detail, finished_s=now_s, data=data)
        if outcome is not Outcome.UNKNOWN:
            self.in_flight = None
        return made + self.feed(ActionFinished(now_s=now_s, receipt=receipt))

    def approval(self, now_s: float, approved: bool, by: str = "somebody") -> list[Decision]:
        """A person decided about the plan that waits."""
        made = self.until(now_s)
        assert self.asked is not None, "no plan waits for approval"
        return made + self.feed(ApprovalGiven(now_s=now_s, plan=self.asked, approved=approved, by=by))

    # ---- looking back ---------------------------------------------------------------------------

    def of(self, kind: type[Decision]) -> list[Decision]:
        """The decisions of one class so far."""
        return [decision for decision in self.decisions if isinstance(decision, kind)]
