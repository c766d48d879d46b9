"""The one state machine: events in, decisions out, the same bytes for the same events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from jobwatchdog.engine.lifecycle import Stage
from jobwatchdog.engine.ports import Change, Detector, Planner, Tracker
from jobwatchdog.engine.progress import as_counted, ending_it
from jobwatchdog.engine.remedy import Remedy
from jobwatchdog.engine.runtime import JobRuntime, Limits, Steps, Wait, run_from_history
from jobwatchdog.incidents import CausalTable, IncidentTracker
from jobwatchdog.model import (
    NO_JOB,
    Action,
    ActionFinished,
    ActionStarted,
    ApprovalGiven,
    BreakerClosed,
    Decision,
    DetectorFailed,
    Event,
    Finding,
    HistoryLoaded,
    Incident,
    IncidentChanged,
    IncidentState,
    Job,
    JobId,
    JobPhase,
    JobRegistered,
    JobStateSeen,
    Json,
    LogEnded,
    Outcome,
    Signal,
    SignalsObserved,
    StepReport,
    Tick,
)
from jobwatchdog.plan.planner import Planner as PolicyPlanner
from jobwatchdog.policy.model import Policy

T = TypeVar("T")

JOBS_MAX = 1000  # remembered; only jobs that ended are forgotten
ROUNDS_MAX = 100  # of "something fell due" within one event; more means that a part asks for the past

_ENDS = {JobPhase.CANCELLED: "its user cancelled it", JobPhase.SUCCEEDED: "it finished"}
_CLOSED = frozenset({IncidentState.RESOLVED, IncidentState.ESCALATED, IncidentState.IGNORED})


class Engine:
    """Folds events, one at a time, into decisions.

    `settle_s` is how long an incident's cause must stand still before it is planned. With `rehearse`
    nothing is ordered: every plan is made and told, and counted against its budget as if carried out.
    """

    def __init__(
        self,
        detectors_for: Callable[[JobId], Sequence[Detector]],
        causes: CausalTable,
        policies: Sequence[Policy],
        *,
        fleet_nodes: int | None = None,
        settle_s: float = 2.0,
        limits: Limits | None = None,
        rehearse: bool = False,
        tracker: Tracker | None = None,
        planner: Planner | None = None,
    ) -> None:
        self._detectors_for = detectors_for
        self._tracker: Tracker = tracker or IncidentTracker(causes)
        self._planner: Planner = planner or PolicyPlanner(policies, fleet_nodes)
        self._limits = limits or Limits(settle_s=settle_s)
        self._jobs: dict[JobId, JobRuntime] = {}
        self._now = 0.0
        self._out: list[Decision] = []
        self._remedy = Remedy(self._tracker, self._planner, self._limits, rehearse, self._emit, self._take)

    # ---- the outside ----------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Decision]:
        """Fold one event. Time never runs backwards: an event from the past counts as now."""
        self._now = max(self._now, event.now_s)
        self._out = []
        self._fold(event)
        self._advance()
        return self._out

    def next_deadline_s(self) -> float | None:
        """When a `Tick` would change something, if nothing else happens before."""
        times = [self._tracker.next_deadline_s()]
        for job in self._jobs.values():
            times.extend(_deadline_of(detector) for detector in job.tickers())
            times.append(self._remedy.next_deadline_s(job))
        return min((t for t in times if t is not None), default=None)

    def incidents(self) -> list[Incident]:
        """All that are remembered, the one to look at first in front."""
        return self._tracker.ranked()

    def jobs(self) -> list[Job]:
        """The jobs under watch, by id."""
        return [self._jobs[id].job for id in sorted(self._jobs)]

    def in_flight(self) -> list[Action]:
        """Ordered actions whose receipt is awaited: after a replay of the story, what is to be looked into."""
        found: list[Action] = []
        for runtime in self._each():
            found.extend(action for action, _ in runtime.loose.values())
            if runtime.run is not None and runtime.run.in_flight is not None:
                found.append(runtime.run.in_flight)
        return found

    def snapshot(self) -> dict[str, Json]:
        """What `status` shows: plain JSON."""
        return {
            "now_s": self._now,
            "jobs": [self._jobs[id].snapshot() for id in sorted(self._jobs)],
            "incidents": [_incident_line(incident) for incident in self.incidents()],
        }

    # ---- events ---------------------------------------------------------------------------------

    def _fold(self, event: Event) -> None:
        match event:
            case SignalsObserved(signals=signals):
                for signal in signals:
                    self._signal(signal)
            case Tick() | ActionStarted():
                pass
            case JobRegistered(job=job):
                self._register(job)
            case ActionFinished(receipt=receipt):
                counted = receipt
                for job_runtime in self._each():
                    counted = as_counted(job_runtime, counted)
                self._planner.action_finished(counted, self._now)
                for job_runtime in self._each():
                    self._remedy.action_finished(job_runtime, receipt, self._now)
            case ApprovalGiven():
                self._planner.approval(event)
                for job_runtime in self._each():
                    self._remedy.approval(job_runtime, event, self._now)
            case BreakerClosed(policy=policy):
                self._planner.close_breaker(policy)
                for job_runtime in self._each():
                    self._remedy.ask_again(job_runtime, self._now)
            case HistoryLoaded():
                self._load(event)
            case LogEnded(job=job_id):
                self._log_ended(self._runtime(job_id))
            case _:
                raise TypeError(f"the engine knows no event {type(event).__name__}")

    def _register(self, job: Job) -> None:
        known = self._jobs.get(job.id)
        runtime = known or self._runtime(job.id)
        old = runtime.job
        if job.attempt < old.attempt:
            return  # an old fact that comes late
        runtime.job = job
        for detector in list(runtime.detectors):
            self._ask(runtime, detector, lambda d: d.job_changed(job))
        self._take(self._tracker.job_changed(job, self._now))
        if known is not None and job.attempt > old.attempt:
            self._new_attempt(runtime, old.attempt)

    def _new_attempt(self, runtime: JobRuntime, old_attempt: int) -> None:
        runtime.steps = Steps()
        runtime.seen = None
        if runtime.stage is Stage.ENDED:
            runtime.move(Stage.WATCHING, self._now, f"attempt {runtime.job.attempt} was started")
        self._remedy.new_attempt(runtime, old_attempt, self._now)

    def _load(self, event: HistoryLoaded) -> None:
        runtime = self._runtime(event.job)
        self._planner.load_history(event.past)
        for past in event.past:
            if past.outcome not in (Outcome.FAILED, Outcome.SKIPPED):
                runtime.spend(past.action.key)
        pending = [past for past in event.past if past.outcome in (None, Outcome.UNKNOWN)]
        if pending and runtime.run is None:
            newest = max(pending, key=lambda past: (past.ordered_s, past.action.id))
            runtime.run = run_from_history(newest, self._now, self._limits)
            runtime.move(Stage.ACTING, self._now, f"{newest.action.key} has an intent without receipt")

    def _log_ended(self, runtime: JobRuntime) -> None:
        for detector in list(runtime.detectors):
            self._findings(runtime, self._ask(runtime, detector, lambda d: d.log_ended(self._now)))
        self._take(self._tracker.log_ended(self._now))
        self._remedy.ask_again(runtime, self._now)

    # ---- signals --------------------------------------------------------------------------------

    def _signal(self, signal: Signal) -> None:
        """To its own job; one that names none (a node's kernel log) to every job."""
        if signal.job == NO_JOB:
            for runtime in self._each():
                self._observe(runtime, signal)
        else:
            self._observe(self._runtime(signal.job), signal)

    def _observe(self, runtime: JobRuntime, signal: Signal) -> None:
        if isinstance(signal, JobStateSeen) and signal.attempt < runtime.job.attempt:
            return  # the end of an attempt that was replaced
        for detector in runtime.listeners(signal):
            try:
                found = detector.observe(signal, self._now)
            except Exception as error:
                self._leave_out(runtime, detector, error)
                continue
            if found:
                self._findings(runtime, found)
        if isinstance(signal, StepReport):
            if runtime.steps.note(signal):
                self._tracker.stepped(runtime.job.id, runtime.job.attempt, signal.step)
            self._remedy.stepped(runtime, self._now)
        elif isinstance(signal, JobStateSeen):
            self._job_state(runtime, signal)

    def _job_state(self, runtime: JobRuntime, signal: JobStateSeen) -> None:
        runtime.seen = signal.state
        why = _ENDS.get(signal.state)
        if signal.state is JobPhase.SUCCEEDED and ending_it(runtime):
            return  # many end with code 0 when they are told to end
        if why is not None:
            self._remedy.job_ended(runtime, why, signal.state, self._now)
        else:
            self._remedy.job_seen(runtime, signal.state, self._now)

    def _findings(self, runtime: JobRuntime, findings: Iterable[Finding]) -> None:
        ours = ending_it(runtime)
        for finding in findings:
            self._take(self._tracker.observe(finding, self._now, runtime.job.attempt, ending_it=ours))

    def _ask(self, runtime: JobRuntime, detector: Detector, question: Callable[[Detector], T]) -> T | tuple[()]:
        """Fail open: a detector that raises is left out for this job, and said so."""
        try:
            return question(detector)
        except Exception as error:
            self._leave_out(runtime, detector, error)
            return ()

    def _leave_out(self, runtime: JobRuntime, detector: Detector, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        runtime.leave_out(detector, words)
        self._emit(DetectorFailed(now_s=self._now, job=runtime.job.id, detector=detector.id, error=words))

    # ---- incidents ------------------------------------------------------------------------------

    def _take(self, changes: Iterable[Change]) -> None:
        """Tell every change, and note which open incidents are to be planned when."""
        for change in changes:
            incident = change.incident
            self._emit(IncidentChanged(now_s=self._now, incident=incident, why=change.why))
            runtime = self._runtime(incident.job)
            if incident.state is not IncidentState.OPEN:
                runtime.waits.pop(incident.id, None)
            if incident.state in _CLOSED:
                runtime.open.pop(incident.id, None)
                self._remedy.incident_closed(runtime, incident, change.why, self._now)
                continue
            runtime.open[incident.id] = incident
            if incident.state is IncidentState.OPEN and not self._remedy.adopted(runtime, incident, self._now):
                self._schedule(runtime, incident)

    def _schedule(self, runtime: JobRuntime, incident: Incident) -> None:
        cause = (incident.kind, incident.suspects, incident.restart_helps)
        wait = runtime.waits.get(incident.id)
        if wait is None:
            runtime.waits[incident.id] = Wait(self._now, self._now + self._limits.settle_s, cause)
        elif wait.cause != cause:
            latest = max(self._now, wait.since_s + self._limits.settle_s_max)
            wait.due_s = min(self._now + self._limits.settle_s, latest)
            wait.cause, wait.asked, wait.blocked_s = cause, 0, None
            self._remedy.cause_changed(runtime, incident, self._now)
        elif wait.plans == 0:
            # More is known of what was refused so far: its confidence, its measures.
            soon = self._now + self._limits.settle_s
            wait.due_s = soon if wait.due_s is None else min(wait.due_s, soon)

    # ---- time -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Let everything happen that is due by now, in a fixed order."""
        for _ in range(ROUNDS_MAX):
            before = len(self._out)
            for runtime in self._each():
                self._tick_detectors(runtime)
            due = self._tracker.next_deadline_s()
            if due is not None and due <= self._now:
                self._take(self._tracker.tick(self._now))
            for runtime in self._each():
                self._remedy.advance(runtime, self._now)
            if len(self._out) == before:
                return

    def _tick_detectors(self, runtime: JobRuntime) -> None:
        for detector in runtime.tickers():
            due = self._ask(runtime, detector, lambda d: d.next_deadline_s())
            if isinstance(due, float | int) and due <= self._now:
                self._findings(runtime, self._ask(runtime, detector, lambda d: d.tick(self._now)))

    # ---- small helpers --------------------------------------------------------------------------

    def _each(self) -> list[JobRuntime]:
        return [self._jobs[id] for id in sorted(self._jobs)]

    def _runtime(self, id: JobId) -> JobRuntime:
        """The job's runtime; one that nobody registered can only be watched."""
        if id not in self._jobs:
            self._forget()
            self._jobs[id] = JobRuntime(Job(id=id, launcher="log"), list(self._detectors_for(id)))
        return self._jobs[id]

    def _forget(self) -> None:
        """Make room: of too many jobs, the one that ended longest ago."""
        if len(self._jobs) >= JOBS_MAX:
            ended = next((id for id, job in self._jobs.items() if job.stage is Stage.ENDED), None)
            if ended is not None:
                del self._jobs[ended]

    def _emit(self, decision: Decision) -> None:
        self._out.append(decision)


def _deadline_of(detector: Detector) -> float | None:
    """A detector that cannot even say this is left out at the next event; until then it wants no tick."""
    try:
        return detector.next_deadline_s()
    except Exception:
        return None


def _incident_line(incident: Incident) -> dict[str, Json]:
    return {
        "id": str(incident.id), "job": str(incident.job), "kind": str(incident.kind), "state": str(incident.state),
        "attempt": incident.attempt, "confidence": incident.confidence, "opened_s": incident.opened_s,
        "summary": incident.summary,
    }  # fmt: skip
