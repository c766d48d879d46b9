"""Plans in motion: settle, plan, order one action after the other, verify, next rung."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jobwatchdog.engine import progress
from jobwatchdog.engine.lifecycle import Stage
from jobwatchdog.engine.ports import Change, Planner, Tracker
from jobwatchdog.engine.runtime import JobRuntime, Limits, PlanRun, Wait
from jobwatchdog.engine.voice import Voice
from jobwatchdog.model import (
    DESTRUCTIVE,
    Action,
    ActionOrdered,
    ApprovalGiven,
    ApprovalWanted,
    Check,
    Decision,
    Incident,
    IncidentState,
    JobPhase,
    Mode,
    Outcome,
    PlanMade,
    PlanRefused,
    Receipt,
    Verb,
)


class Remedy:
    """The part of the engine that acts; one instance serves all jobs, all state is in their runtimes."""

    def __init__(
        self,
        tracker: Tracker,
        planner: Planner,
        limits: Limits,
        rehearse: bool,
        emit: Callable[[Decision], None],
        take: Callable[[Iterable[Change]], None],
    ) -> None:
        self._tracker = tracker
        self._planner = planner
        self._limits = limits
        self._rehearse = rehearse
        self._voice = Voice(tracker, emit, take)

    # ---- time -----------------------------------------------------------------------------------

    def next_deadline_s(self, rt: JobRuntime) -> float | None:
        """When something of this job falls due."""
        times = [rt.run.due_s] if rt.run else []
        times.extend(due_s for _, due_s in rt.loose.values())
        times.extend(wait.due_s for id, wait in rt.waits.items() if self._may_plan(rt, rt.open.get(id)))
        return min((t for t in times if t is not None), default=None)

    def advance(self, rt: JobRuntime, now_s: float) -> None:
        """Do what is due: a deadline of the run first, then the incidents that wait, best first."""
        if rt.run is not None and rt.run.due_s is not None and rt.run.due_s <= now_s:
            self._overdue(rt, rt.run, now_s)
        for action, due_s in list(rt.loose.values()):
            if due_s <= now_s:
                del rt.loose[action.id]
                self._voice.say(rt, action.incident, "", "receipt", f"no receipt of {action.verb} came", now_s)
        due = {id for id, wait in rt.waits.items() if wait.due_s is not None and wait.due_s <= now_s}
        if not due:
            return
        for incident in self._tracker.ranked():
            if incident.id in due and incident.id in rt.waits:
                self._plan_due(rt, incident, rt.waits[incident.id], now_s)

    def _overdue(self, rt: JobRuntime, run: PlanRun, now_s: float) -> None:
        if rt.stage is Stage.VERIFYING:
            self._verify_failed(rt, run, progress.too_slow(rt, run), now_s)
        elif rt.stage is Stage.ASKING:
            self._give_up(rt, run, "stale_after", "nobody approved the plan in time", now_s)
        elif run.held:
            self._give_up(rt, run, "stale_after", "the job could not be seen for too long", now_s)
        else:
            verb = run.in_flight.verb if run.in_flight else "action"
            self._give_up(rt, run, "receipt", f"no receipt of {verb} in {self._limits.receipt_s_max:g} s", now_s)

    def _give_up(self, rt: JobRuntime, run: PlanRun, guard: str, because: str, now_s: float) -> None:
        self._drop(rt, run, guard, because, now_s)
        self._voice.close(rt, run.plan.incident, IncidentState.ESCALATED, because, now_s)

    # ---- planning -------------------------------------------------------------------------------

    def _may_plan(self, rt: JobRuntime, incident: Incident | None) -> bool:
        """Whether this incident could be planned now: nothing runs, or it shows that what ran did not help."""
        free = rt.stage is Stage.ENDED or (rt.stage is Stage.WATCHING and not rt.loose)
        return incident is not None and (free or progress.refutes(rt, incident))

    def _plan_due(self, rt: JobRuntime, incident: Incident, wait: Wait, now_s: float) -> None:
        if rt.stage is Stage.ENDED:
            self._voice.close(rt, incident.id, IncidentState.IGNORED, "the job had ended before this was seen", now_s)
            return
        if not self._may_plan(rt, incident):
            self._say_waiting(rt, incident, now_s)
            return
        if rt.run is not None:
            self._superseded(rt, rt.run, incident, now_s)
        if wait.plans >= self._limits.plans_max:
            self._voice.close(rt, incident.id, IncidentState.ESCALATED, f"{wait.plans} plans did not help", now_s)
            return
        decision = self._planner.decide(incident, rt.job, now_s)
        wait.asked += 1
        wait.due_s = now_s + self._limits.replan_s if wait.asked < self._limits.replans_max else None
        if isinstance(decision, PlanMade):
            self._made(rt, incident, wait, decision, now_s)
        else:
            self._not_made(rt, incident, wait, decision, now_s)

    def _say_waiting(self, rt: JobRuntime, incident: Incident, now_s: float) -> None:
        if rt.run is not None and rt.stage is not Stage.ENDED:
            plan = rt.run.plan
            self._voice.say(rt, incident.id, plan.policy, "one plan a job", f"plan {plan.id} is {rt.stage}", now_s)
        for action, _ in rt.loose.values():
            because = f"{action.verb} of a plan that was dropped is still in flight"
            self._voice.say(rt, incident.id, "", "one plan a job", because, now_s)

    def _made(self, rt: JobRuntime, incident: Incident, wait: Wait, made: PlanMade, now_s: float) -> None:
        plan = made.plan
        if self._stale(rt, incident, wait, made, now_s):
            return
        spent = [action.key for action in plan.actions if action.key in rt.keys]
        if spent and plan.mode is not Mode.OBSERVE and not self._rehearse:
            check = Check(name="exactly once", passed=False, because=f"{spent[0]} was already ordered")
            self._voice.refuse(rt, incident.id, plan.policy, (*made.checks, check), now_s)
            return
        self._voice.emit(made)
        if plan.mode is Mode.OBSERVE or self._rehearse:
            wait.due_s = None  # told; again only if the cause changes
            if self._rehearse and plan.mode is not Mode.OBSERVE and wait.plans == 0:
                self._planner.plan_started(plan, now_s)
            wait.plans = 1
            return
        wait.plans += 1
        wait.due_s = None
        rt.run = PlanRun(plan, incident.kind, rt.job.attempt, now_s, last_plans=wait.plans, start_step=rt.steps.newest)
        if plan.mode is Mode.APPROVE:
            rt.run.due_s = self._begin_by(plan.actions[0], now_s)
            rt.move(Stage.ASKING, now_s, f"plan {plan.id} needs approval")
            self._voice.emit(ApprovalWanted(now_s=now_s, plan=plan))
        else:
            self._start(rt, rt.run, f"plan {plan.id} made", now_s)

    def _stale(self, rt: JobRuntime, incident: Incident, wait: Wait, made: PlanMade, now_s: float) -> bool:
        """A guard that opens after hours must not set off what it held back: the world has moved on."""
        not_after_s = made.plan.actions[0].not_after_s
        if wait.blocked_s is None or not_after_s is None or now_s - wait.blocked_s <= not_after_s - now_s:
            return False
        because = f"a guardrail held it back for {now_s - wait.blocked_s:g} s, {not_after_s - now_s:g} s are allowed"
        check = Check(name="guardrail stale_after", passed=False, because=because)
        self._voice.refuse(rt, incident.id, made.plan.policy, (*made.checks, check), now_s)
        self._voice.close(rt, incident.id, IncidentState.ESCALATED, f"the plan is stale: {because}", now_s)
        return True

    def _not_made(
        self, rt: JobRuntime, incident: Incident, wait: Wait, decision: PlanRefused | None, now_s: float
    ) -> None:
        if decision is not None:
            guarded = any(not check.passed and check.name.startswith("guardrail ") for check in decision.checks)
            wait.blocked_s = (wait.blocked_s if wait.blocked_s is not None else now_s) if guarded else None
            self._voice.refuse(rt, incident.id, decision.policy, decision.checks, now_s)
        if wait.last_try:
            self._voice.close(rt, incident.id, IncidentState.ESCALATED, "the plan failed and there is no other", now_s)

    # ---- ordering -------------------------------------------------------------------------------

    def _start(self, rt: JobRuntime, run: PlanRun, why: str, now_s: float) -> None:
        rt.move(Stage.ACTING, now_s, why)
        self._planner.plan_started(run.plan, now_s)
        self._voice.take(self._tracker.fix_cause(run.plan.incident, now_s))
        self._voice.set_state(rt, run.plan.incident, IncidentState.PLANNED, f"plan {run.plan.id} started", now_s)
        if rt.run is run:
            self._order_next(rt, run, now_s)

    def _order_next(self, rt: JobRuntime, run: PlanRun, now_s: float) -> None:
        if run.abandoned:
            self._drop(rt, run, "still wanted", run.abandoned, now_s)
            return
        if run.at >= len(run.plan.actions):
            self._actions_done(rt, run, now_s)
            return
        action = run.plan.actions[run.at]
        if action.verb is Verb.ASK and run.plan.mode is Mode.APPROVE:
            run.at += 1  # the approval that began this plan was the answer
            self._order_next(rt, run, now_s)
            return
        if action.verb in DESTRUCTIVE and rt.seen is JobPhase.UNKNOWN:
            self._hold(rt, run, action, now_s)
            return
        run.held = False
        run.in_flight = action
        run.due_s = now_s + self._limits.receipt_s_max
        rt.spend(action.key)
        self._voice.emit(ActionOrdered(now_s=now_s, action=action))

    def _hold(self, rt: JobRuntime, run: PlanRun, action: Action, now_s: float) -> None:
        """Missing evidence is not evidence: nothing destructive while the job cannot be seen."""
        if not run.held:
            run.held = True
            run.due_s = self._begin_by(action, now_s)
        because = f"the job's state is unknown; {action.verb} waits until it is seen"
        self._voice.say(rt, run.plan.incident, run.plan.policy, "job state", because, now_s)

    def _begin_by(self, action: Action, now_s: float) -> float:
        return now_s + self._limits.receipt_s_max if action.not_after_s is None else max(now_s, action.not_after_s)

    def action_finished(self, rt: JobRuntime, receipt: Receipt, now_s: float) -> None:
        """The receipt of the action in flight, or of one whose plan was dropped; a doubled one changes nothing."""
        run = rt.run
        if receipt.action in rt.loose and receipt.outcome is not Outcome.UNKNOWN:
            action, _ = rt.loose.pop(receipt.action)
            if receipt.outcome is not Outcome.DONE:
                rt.keys.pop(action.key, None)
            return
        if run is None or run.in_flight is None or run.in_flight.id != receipt.action:
            return
        action = run.in_flight
        if receipt.outcome is Outcome.UNKNOWN:
            return  # the shell looks into it and reports again, or the deadline calls a person
        run.in_flight, run.due_s = None, None
        if action.verb is Verb.RESTART and receipt.outcome is not Outcome.DONE and rt.seen is JobPhase.SUCCEEDED:
            self.job_ended(rt, "it finished before it could be restarted", JobPhase.SUCCEEDED, now_s)
            return
        if receipt.outcome is not Outcome.DONE:
            rt.keys.pop(action.key, None)  # it is known not to have happened: a later fault may need it
        if receipt.outcome is Outcome.FAILED and not progress.may_fail(run, action):
            why = f"{action.verb} failed: {receipt.detail}"
            self._finish(rt, now_s, why)
            self._next_rung(rt, run, why, now_s)
            return
        if action.verb is Verb.RESTART:
            progress.note_restart(rt, run, receipt)
        run.at += 1
        self._order_next(rt, run, now_s)

    def _next_rung(self, rt: JobRuntime, run: PlanRun, why: str, now_s: float) -> None:
        """Open the incident again and ask at once; no further plan means that a person is called."""
        incident = rt.open.get(run.plan.incident)
        if incident is None or run.abandoned:
            return
        self._voice.set_state(rt, incident.id, IncidentState.OPEN, why, now_s)
        wait = rt.waits.get(incident.id)
        if wait is not None:
            # Telling again at once would fail again; a remedy of the next rung may not.
            told = all(action.verb in progress.TELLS for action in run.plan.actions)
            wait.due_s = now_s + self._limits.replan_s if told else now_s
            wait.last_try, wait.asked, wait.plans = True, 0, run.last_plans

    # ---- verifying ------------------------------------------------------------------------------

    def _actions_done(self, rt: JobRuntime, run: PlanRun, now_s: float) -> None:
        told = all(action.verb in progress.TELLS for action in run.plan.actions)
        verify = progress.wanted(run)
        if verify is None or told:
            self._finish(rt, now_s, "the plan is done, nothing is to be verified")
            self._planner.verify_passed(run.plan.id, now_s)
            state = IncidentState.ESCALATED if told else IncidentState.RESOLVED
            self._voice.close(rt, run.plan.incident, state, "a person was told" if told else "the plan is done", now_s)
            return
        run.due_s = now_s + verify.within_s
        if not run.restarts:
            run.base_step = rt.steps.newest
        rt.move(Stage.VERIFYING, now_s, f"{verify.steps} new steps within {verify.within_s:g} s are wanted")
        self._voice.set_state(
            rt, run.plan.incident, IncidentState.VERIFYING, "the plan is done, steps must advance", now_s
        )
        if rt.run is run:
            self.stepped(rt, now_s)

    def stepped(self, rt: JobRuntime, now_s: float) -> None:
        """Progress was reported: perhaps enough."""
        run = rt.run
        if run is None:
            return
        if rt.stage is Stage.VERIFYING and progress.reached(rt, run):
            self._verify_passed(rt, run, f"step {rt.steps.newest} reached, {run.target_step} was wanted", now_s)
        elif rt.stage is not Stage.VERIFYING and progress.healthy_again(rt, run):
            why = f"steps advance again: {rt.steps.newest}"
            self._voice.close(rt, run.plan.incident, IncidentState.RESOLVED, why, now_s)

    def _verify_passed(self, rt: JobRuntime, run: PlanRun, why: str, now_s: float) -> None:
        self._finish(rt, now_s, why)
        self._planner.verify_passed(run.plan.id, now_s)
        self._voice.close(rt, run.plan.incident, IncidentState.RESOLVED, why, now_s)
        self.ask_again(rt, now_s)

    def _verify_failed(self, rt: JobRuntime, run: PlanRun, why: str, now_s: float) -> None:
        self._finish(rt, now_s, why)
        self._planner.verify_failed(run.plan.id, now_s)
        self._next_rung(rt, run, why, now_s)

    def _superseded(self, rt: JobRuntime, run: PlanRun, by: Incident, now_s: float) -> None:
        """The new attempt broke before it was verified; the new incident carries on, a rung higher."""
        why = f"attempt {by.attempt} broke again before it was verified: {by.kind}, see {by.id}"
        self._finish(rt, now_s, why)
        self._planner.verify_failed(run.plan.id, now_s)
        self._voice.close(rt, run.plan.incident, IncidentState.RESOLVED, why, now_s)

    # ---- things that happen to a job ------------------------------------------------------------

    def new_attempt(self, rt: JobRuntime, old_attempt: int, now_s: float) -> None:
        """Faults of the replaced attempt are over; what persists will show itself on the new one."""
        kept = rt.run.plan.incident if rt.run else None
        for id in sorted(rt.open):
            incident = rt.open[id]
            if id != kept and incident.attempt <= old_attempt and incident.state is IncidentState.OPEN:
                self._voice.close(rt, id, IncidentState.RESOLVED, f"attempt {rt.job.attempt} runs", now_s)
        run = rt.run
        if run is None or rt.stage is Stage.VERIFYING or not progress.overtaken(run):
            return
        why = f"attempt {rt.job.attempt} was started meanwhile"
        self._voice.close(rt, run.plan.incident, IncidentState.RESOLVED, why, now_s)
        run.abandoned = run.abandoned or why
        if rt.run is run and run.in_flight is None:
            self._drop(rt, run, "still wanted", why, now_s)

    def job_ended(self, rt: JobRuntime, why: str, state: JobPhase, now_s: float) -> None:
        """Its user's word, or success: nothing is planned any more and nothing restarted."""
        run = rt.run
        if run is not None and rt.stage is Stage.VERIFYING and state is JobPhase.SUCCEEDED:
            self._verify_passed(rt, run, f"the job ended well: {why}", now_s)
        elif run is not None:
            self._drop(rt, run, "job state", f"the job ended: {why}", now_s)
        for id in sorted(rt.open):
            if id in rt.open:
                self._voice.close(rt, id, IncidentState.IGNORED, f"the job ended: {why}", now_s)
        rt.waits.clear()
        rt.move(Stage.ENDED, now_s, why)

    def job_seen(self, rt: JobRuntime, state: JobPhase, now_s: float) -> None:
        """The launcher can be asked again, or says that the attempt failed."""
        run = rt.run
        if run is not None and run.held and state is not JobPhase.UNKNOWN:
            self._order_next(rt, run, now_s)
        elif run is not None and rt.stage is Stage.VERIFYING and state is JobPhase.FAILED and run.due_s is not None:
            # A detector says what broke; if none does, the plan has still failed.
            run.due_s = min(run.due_s, now_s + self._limits.settle_s_max)

    def adopted(self, rt: JobRuntime, incident: Incident, now_s: float) -> bool:
        """An action of an earlier life is in flight for this very incident, now seen again: they belong together."""
        run = rt.run
        if run is None or not run.recovered or run.plan.incident != incident.id:
            return False
        self._voice.set_state(rt, incident.id, IncidentState.PLANNED, f"plan {run.plan.id} was begun before", now_s)
        if rt.stage is Stage.VERIFYING:
            self._voice.set_state(
                rt, incident.id, IncidentState.VERIFYING, "its plan is done, steps must advance", now_s
            )
        return True

    def cause_changed(self, rt: JobRuntime, incident: Incident, now_s: float) -> None:
        """A plan that has not begun is thrown away with the cause it was made for."""
        run = rt.run
        if run is not None and rt.stage is Stage.ASKING and run.plan.incident == incident.id:
            self._drop(rt, run, "still wanted", f"the cause is now {incident.kind}", now_s)

    def incident_closed(self, rt: JobRuntime, incident: Incident, why: str, now_s: float) -> None:
        """The incident went away under its plan: what is not yet ordered never will be."""
        run = rt.run
        if run is None or run.plan.incident != incident.id or run.abandoned:
            return
        run.abandoned = f"the incident is {incident.state}: {why}"
        if rt.stage is Stage.ASKING or run.held:
            self._drop(rt, run, "still wanted", run.abandoned, now_s)

    def approval(self, rt: JobRuntime, event: ApprovalGiven, now_s: float) -> None:
        """A person decided about the plan that waits; about any other, nothing happens."""
        run = rt.run
        if run is None or rt.stage is not Stage.ASKING or run.plan.id != event.plan:
            return
        if event.approved:
            self._start(rt, run, f"approved by {event.by}", now_s)
            return
        self._drop(rt, run, "approval", f"refused by {event.by}", now_s)
        self._voice.close(rt, run.plan.incident, IncidentState.ESCALATED, f"{event.by} refused the plan", now_s)

    def ask_again(self, rt: JobRuntime, now_s: float) -> None:
        """Something that plans depend on changed: incidents that wait are asked about now."""
        for id in sorted(rt.waits):
            wait = rt.waits[id]
            if wait.due_s is not None or wait.plans == 0:
                wait.due_s, wait.asked = now_s, 0

    # ---- small helpers --------------------------------------------------------------------------

    def _finish(self, rt: JobRuntime, now_s: float, why: str) -> None:
        rt.run = None
        rt.move(Stage.WATCHING, now_s, why)

    def _drop(self, rt: JobRuntime, run: PlanRun, guard: str, because: str, now_s: float) -> None:
        """End a plan before its time, and say so."""
        if run.in_flight is not None and run.due_s is not None and run.due_s > now_s:
            rt.loose[run.in_flight.id] = (run.in_flight, run.due_s)
        self._finish(rt, now_s, f"plan {run.plan.id} dropped: {because}")
        self._voice.say(rt, run.plan.incident, run.plan.policy, guard, because, now_s)
