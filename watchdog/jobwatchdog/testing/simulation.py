"""A world made from a seed: a job that breaks, signals that get lost, actuators that fail, a watchdog that dies.

The world knows the truth; the engine sees it through a bad channel. Whatever the seed, these hold: an
attempt is started at most once, nothing is done after the user's word, budgets hold, and once the faults
end the job runs or a person was called. `run(seed, ...)` raises `InvariantBroken` with the seed in front.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from jobwatchdog.engine import Engine, Stage
from jobwatchdog.model import (
    Action,
    ActionFinished,
    ActionOrdered,
    Decision,
    Event,
    HistoryLoaded,
    IncidentChanged,
    IncidentState,
    Job,
    JobId,
    JobPhase,
    JobRegistered,
    JobStateSeen,
    Kind,
    LogMatch,
    Origin,
    Outcome,
    PlanMade,
    PlanRefused,
    ProcessSeen,
    ProcState,
    Receipt,
    Role,
    Signal,
    SignalsObserved,
    StepReport,
    Tick,
    Verb,
)
from jobwatchdog.testing.invariants import InvariantBroken, Invariants
from jobwatchdog.testing.odds import Book, Odds, Truth
from jobwatchdog.testing.words import event_words, line_of

JOB: Final = JobId("sim")
STEP_S: Final = 2.0
POLL_S: Final = 5.0
CHECKPOINT_STEPS: Final = 10
TAIL_LINES: Final = 40  # of the log that a failure shows


class Simulation:
    """One seed's world."""

    def __init__(self, seed: int, engine: Callable[[], Engine], invariants: Invariants, odds: Odds) -> None:
        self.chance = random.Random(seed)  # noqa: S311 (a simulation, no secret)
        self.odds = odds
        self.make_engine = engine
        self.engine = engine()
        self.checks = invariants
        self.truth = Truth()
        self.book = Book()
        self.log: list[str] = []
        self.now = 0.0
        self.called: str = ""  # why a person was called last
        self.said = ""
        self.alive = True
        self.life = 0  # of the watchdog; what an earlier one had running is gone
        self.replays = self.chance.random() < 0.5  # how a new engine learns of the past
        self.kinds: dict[str, Kind] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.bug = self.chance.random() < odds.code_bug

    # ---- the clock ------------------------------------------------------------------------------

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, what))

    def run(self) -> None:
        """Live through it all, then judge."""
        self.feed(JobRegistered(now_s=0.0, job=self.job()))
        self.after(STEP_S, self.train)
        self.after(POLL_S, self.poll)
        self.after(self.gap(self.odds.fault_every_s), self.fault)
        self.after(self.gap(self.odds.engine_dies_every_s), self.engine_dies)
        if self.chance.random() < self.odds.user_cancels:
            self.after(self.chance.uniform(10, self.odds.faults_until_s), self.cancel)
        while self._heap and self._heap[0][0] <= self.odds.ends_s and not self.settled():
            at, _, what = heapq.heappop(self._heap)
            self.ticks(at)
            self.now = at
            what()
        self.judge()

    def ticks(self, until_s: float) -> None:
        for _ in range(10_000 if self.alive else 0):
            due = self.engine.next_deadline_s()
            if due is None or due >= until_s:
                return
            self.now = max(self.now, due)
            self.feed(Tick(now_s=self.now))
        if self.alive:
            raise InvariantBroken(f"at {self.now:.3f}: the engine wants ticks without end")

    def gap(self, mean_s: float) -> float:
        return self.chance.expovariate(1 / mean_s)

    # ---- the engine and what it decides ---------------------------------------------------------

    def feed(self, event: Event) -> None:
        if not self.alive:
            return
        made = self.engine.handle(event)
        if not isinstance(event, Tick):
            self.note(event_words(event))
        self.log.extend(line_of(decision) for decision in made)
        self.book.events.append(event)
        self.checks.saw(event, made)
        for decision in made:
            self.decided(decision)

    def note(self, words: str) -> None:
        """To the log, the same words once in a row."""
        if words != self.said:
            self.log.append(f"{self.now:.3f} > {words}")
        self.said = words

    def decided(self, decision: Decision) -> None:
        match decision:
            case IncidentChanged(incident=incident):
                self.kinds[incident.id] = incident.kind
                if incident.state is IncidentState.ESCALATED:
                    self.called = f"{incident.id} escalated"
            case PlanMade(plan=plan):
                self.book.plans[plan.id] = (plan, self.kinds[plan.incident])
            case PlanRefused(checks=checks) if any(not c.passed and c.name.startswith("guardrail") for c in checks):
                self.called = f"{decision.incident} refused"
            case ActionOrdered(action=action):
                self.order(action)

    def order(self, action: Action) -> None:
        life = self.life
        if not self.book.intend(action, self.now):
            known = Receipt(action=action.id, outcome=Outcome.SKIPPED, detail="intended before", finished_s=self.now)
            self.after(0.1, lambda: self.report(known, life))
            return
        self.after(self.chance.uniform(0.1, 2.0), lambda: self.carry_out(action, life))

    def carry_out(self, action: Action, life: int) -> None:
        """The act, some way into its time; the receipt follows unless the watchdog dies in between."""
        if life != self.life:
            return
        roll = self.chance.random()
        if roll < self.odds.act_fails and self.faulty():
            receipt = Receipt(action=action.id, outcome=Outcome.FAILED, detail="simulated", finished_s=self.now)
        else:
            receipt = self.act(action)
            if roll > 1 - self.odds.act_unknown and self.faulty():
                self.after(self.chance.uniform(1, 20), lambda: self.report(self.look(action), life))
                receipt = Receipt(action=action.id, outcome=Outcome.UNKNOWN, finished_s=self.now)
        self.after(self.chance.uniform(0.0, 2.0), lambda: self.report(receipt, life))

    def report(self, receipt: Receipt, life: int) -> None:
        if life == self.life:
            if receipt.action in self.book.past:
                self.book.receipt(receipt)
            self.feed(ActionFinished(now_s=self.now, receipt=receipt))

    def act(self, action: Action) -> Receipt:
        done = Receipt(action=action.id, outcome=Outcome.DONE, finished_s=self.now)
        if action.verb is Verb.NOTIFY:
            self.called = "notified"
        if action.verb is not Verb.RESTART:
            return done
        truth = self.truth
        if truth.state == "cancelled" or truth.attempt != action.attempt:
            return replace(done, outcome=Outcome.SKIPPED, detail=f"attempt {truth.attempt} is {truth.state}")
        self.restart()
        return self.look(action)

    def look(self, action: Action) -> Receipt:
        """What an actuator finds that looks whether its act happened."""
        happened = action.verb is not Verb.RESTART or self.truth.attempt > action.attempt
        outcome = Outcome.DONE if happened else Outcome.FAILED
        data = {"new_attempt": action.attempt + 1} if action.verb is Verb.RESTART and happened else {}
        return Receipt(action=action.id, outcome=outcome, finished_s=self.now, data=data)

    def restart(self) -> None:
        truth = self.truth
        truth.attempt += 1
        truth.starts[truth.attempt] = truth.starts.get(truth.attempt, 0) + 1
        truth.step, truth.started_s = truth.checkpoint, self.now
        roll = self.chance.random() if self.faulty() else 1.0
        truth.state = "running"
        if self.bug or roll < self.odds.born_dead:
            self.after(1.0, lambda a=truth.attempt: self.breaks("dead", a))  # type: ignore[misc]
        elif roll < self.odds.born_dead + self.odds.born_hung:
            truth.state = "hung"
        self.log.append(f"{self.now:.3f}   (attempt {truth.attempt} starts, {truth.state})")
        life, attempt = self.life, truth.attempt
        self.after(self.chance.uniform(0.0, 1.5), lambda: self.register(attempt, life))

    def register(self, attempt: int, life: int) -> None:
        if life == self.life and attempt == self.truth.attempt:
            self.feed(JobRegistered(now_s=self.now, job=self.job()))

    def job(self) -> Job:
        return Job(
            id=JOB, launcher="local", target="train.py", attempt=self.truth.attempt, started_s=self.truth.started_s,
            world_size=2, can_restart=True,
        )  # fmt: skip

    # ---- what the job does ----------------------------------------------------------------------

    def train(self) -> None:
        truth = self.truth
        if truth.state == "running":
            truth.step += 1
            truth.advanced_s = self.now
            if truth.step % CHECKPOINT_STEPS == 0:
                truth.checkpoint = truth.step
            self.send(self.report_of_step())
        self.after(STEP_S, self.train)

    def report_of_step(self) -> StepReport:
        loss = 2.0 + self.chance.gauss(0, 0.05)
        return StepReport(job=JOB, framework="sim", step=self.truth.step, loss=loss, origin=Origin(rank=0))

    def poll(self) -> None:
        words = {"running": JobPhase.RUNNING, "hung": JobPhase.RUNNING, "dead": JobPhase.FAILED}
        state = words.get(self.truth.state, JobPhase.CANCELLED)
        if self.chance.random() < self.odds.state_unknown and self.faulty():
            state = JobPhase.UNKNOWN
        seen = JobStateSeen(
            job=JOB, state=state, attempt=self.truth.attempt, exit_code=1 if state is JobPhase.FAILED else None
        )
        self.feed(SignalsObserved(now_s=self.now, signals=(seen, *self.processes())))
        self.after(POLL_S, self.poll)

    def processes(self) -> list[Signal]:
        """What the operating system shows: a hung rank waits busily, so its processor time says nothing."""
        if self.truth.state in ("dead", "cancelled"):
            return []
        pids = [100 * (self.truth.attempt + 1) + rank for rank in range(2)]
        return [
            ProcessSeen(job=JOB, state=ProcState.RUNNING, cpu_s=self.now, origin=Origin(rank=rank, pid=pid))
            for rank, pid in enumerate(pids)
        ]

    def fault(self) -> None:
        if self.faulty():
            self.breaks(self.chance.choice(["dead", "hung", "noise"]), self.truth.attempt)
            self.after(self.gap(self.odds.fault_every_s), self.fault)

    def breaks(self, how: str, attempt: int) -> None:
        truth = self.truth
        if truth.attempt != attempt or truth.state in ("dead", "cancelled"):
            return
        self.log.append(f"{self.now:.3f}   ({how})")
        if how == "hung":
            truth.state = "hung"
            return
        if how == "noise":
            self.send(_match(Kind.RANK_CRASH, Role.SYMPTOM, "an alarming word"))
            return
        truth.state = "dead"
        kind = self.chance.choice([Kind.RANK_CRASH, Kind.CUDA_ERROR, Kind.NCCL_ERROR])
        for one in self.chance.sample([Kind.NCCL_TIMEOUT, kind], k=2):
            self.send(_match(one, Role.CAUSE, f"line about {one}"))
        self.send(ProcessSeen(job=JOB, state=ProcState.GONE, exit_code=1, origin=Origin(rank=self.chance.randrange(2))))

    def cancel(self) -> None:
        """The user's word. The launcher is asked again at every poll."""
        self.log.append(f"{self.now:.3f}   (the user cancels)")
        self.truth.state = "cancelled"

    # ---- the channel ----------------------------------------------------------------------------

    def send(self, signal: Signal) -> None:
        """Lost, late (so out of order), doubled. Lines of a replaced attempt are the shell's to leave out."""
        attempt = self.truth.attempt
        bad = self.faulty()
        if bad and self.chance.random() < self.odds.lost:
            return
        for _ in range(2 if bad and self.chance.random() < self.odds.doubled else 1):
            delay = self.gap(self.odds.late_s) if bad and self.chance.random() < 0.3 else 0.0
            self.after(delay, lambda: self.deliver(signal, attempt))

    def deliver(self, signal: Signal, attempt: int) -> None:
        if attempt == self.truth.attempt:
            self.feed(SignalsObserved(now_s=self.now, signals=(signal,)))

    # ---- the watchdog dies ----------------------------------------------------------------------

    def engine_dies(self) -> None:
        if not self.faulty() or not self.alive:
            return
        self.life += 1
        self.alive = False
        self.log.append(f"{self.now:.3f}   (the watchdog dies)")
        self.after(self.chance.uniform(0.5, 5.0), self.engine_returns)
        self.after(self.gap(self.odds.engine_dies_every_s), self.engine_dies)

    def engine_returns(self) -> None:
        """Either by folding the recorded events again, or from the history of actions; then looks at what pends."""
        self.engine = self.make_engine()
        self.alive = True
        life = self.life
        if self.replays:
            for event in self.book.events:
                self.engine.handle(event)
            for action in self.engine.in_flight():
                if action.id not in self.book.past and self.book.intend(action, self.now):
                    self.after(0.1, lambda a=action: self.carry_out(a, life))  # type: ignore[misc]
        else:
            self.checks.engine_restarted()
            self.book.events.clear()
            past = tuple(self.book.past.values())
            self.feed(HistoryLoaded(now_s=self.now, job=JOB, past=past))
        self.feed(JobRegistered(now_s=self.now, job=self.job()))
        if not self.replays and self.truth.step > self.truth.checkpoint:
            # Without the story the end of the log is read again: it tells that this job had been training.
            self.feed(SignalsObserved(now_s=self.now, signals=(self.report_of_step(),)))
        self.resolve(life)

    def resolve(self, life: int) -> None:
        """Receipts that the old watchdog wrote but could not tell, and intents that are to be looked into."""
        waiting = {action.id for action in self.engine.in_flight()}
        for past in list(self.book.past.values()):
            action = past.action
            if past.outcome in (None, Outcome.UNKNOWN):
                self.after(self.chance.uniform(0.1, 5.0), lambda a=action: self.report(self.look(a), life))  # type: ignore[misc]
            elif action.id in waiting:
                self.report(Receipt(action=action.id, outcome=past.outcome, finished_s=self.now), life)

    # ---- the end --------------------------------------------------------------------------------

    def faulty(self) -> bool:
        return self.now < self.odds.faults_until_s

    def settled(self) -> bool:
        """Whether waiting longer would show nothing new."""
        return self.alive and self.now > self.odds.faults_until_s + 150 and self.verdict() == ""

    def verdict(self) -> str:
        """What is still wrong; "" = nothing."""
        if any(count > 1 for count in self.truth.starts.values()):
            return f"an attempt was started twice: {self.truth.starts}"
        if self.truth.state == "cancelled":
            return ""
        runs = self.truth.state == "running" and self.now - self.truth.advanced_s <= 2 * STEP_S
        if runs or self.called:
            return ""
        return f"the job is {self.truth.state}, stage {self._stage()}, and nobody was called"

    def judge(self) -> None:
        words = self.verdict()
        if words:
            raise InvariantBroken(f"at {self.now:.3f}: {words}")

    def _stage(self) -> str:
        jobs = self.engine.snapshot()["jobs"]
        assert isinstance(jobs, list)
        return ", ".join(str(job.get("stage")) for job in jobs if isinstance(job, dict)) or str(Stage.WATCHING)


def run(seed: int, engine: Callable[[], Engine], invariants: Invariants, odds: Odds | None = None) -> Simulation:
    """One seed, to its end; a broken promise names the seed and shows the last lines."""
    world = Simulation(seed, engine, invariants, odds or Odds())
    try:
        world.run()
    except Exception as error:
        tail = "\n".join(world.log[-TAIL_LINES:])
        raise InvariantBroken(f"seed {seed}: {type(error).__name__}: {error}\n{tail}") from error
    return world


def _match(kind: Kind, role: Role, text: str) -> LogMatch:
    return LogMatch(
        job=JOB, signature=f"sim-{kind}", kind=kind, role=role, text=text, origin=Origin(file="sim.log", line=1)
    )
