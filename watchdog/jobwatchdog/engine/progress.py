"""Whether a plan helped: what its receipts and the steps since say. Pure questions about one run."""

from __future__ import annotations

from dataclasses import replace

from jobwatchdog.engine.lifecycle import Stage
from jobwatchdog.engine.runtime import JobRuntime, PlanRun
from jobwatchdog.model import Action, Incident, Json, Kind, Outcome, Receipt, Verb, Verify

# These slow a job down and do not stop it: no word against a restart that cured something else.
_SLOWS = frozenset({Kind.STRAGGLER, Kind.THERMAL_THROTTLE, Kind.POWER_BRAKE, Kind.CLOCK_THROTTLE})

# A plan of these alone heals nothing: after it a person has the incident.
TELLS = frozenset({Verb.NOTIFY, Verb.ASK, Verb.COLLECT, Verb.HOLD})


def may_fail(run: PlanRun, action: Action) -> bool:
    """Stacks that could not be saved, a message that did not arrive: no reason to leave the job broken."""
    return action.verb in (Verb.COLLECT, Verb.NOTIFY) and run.at + 1 < len(run.plan.actions)


def as_counted(rt: JobRuntime, receipt: Receipt) -> Receipt:
    """The receipt as the breaker sees it: only acts on the job count as failed ones."""
    action = rt.run.in_flight if rt.run is not None else None
    if action is None or action.id != receipt.action or receipt.outcome is not Outcome.FAILED:
        return receipt
    return replace(receipt, outcome=Outcome.SKIPPED) if action.verb in TELLS else receipt


def wanted(run: PlanRun) -> Verify | None:
    """What must be seen after the plan; a restart is always verified."""
    return run.plan.verify or (Verify() if run.restarts else None)


def note_restart(rt: JobRuntime, run: PlanRun, receipt: Receipt) -> None:
    """Where the new attempt begins; a restart that found nothing to do leaves the running one."""
    done = receipt.outcome is Outcome.DONE
    run.new_attempt = _whole(receipt.data.get("new_attempt")) or (run.attempt + 1 if done else rt.job.attempt)
    run.resume_step = _whole(receipt.data.get("checkpoint_step"))
    run.base_step = None if done else rt.steps.newest


def reached(rt: JobRuntime, run: PlanRun) -> bool:
    """Whether enough new steps were made.

    The first step that a new attempt reports is new, unless it only repeats the one that it resumed from. A
    checkpoint's own number is not more than a hint: some count tokens or epochs in it.
    """
    if rt.steps.newest is None or rt.steps.first is None:
        return False
    if run.new_attempt is not None and rt.job.attempt < run.new_attempt:
        return False  # a late line of the attempt that was replaced
    first = rt.steps.first if rt.steps.first == run.resume_step else rt.steps.first - 1
    base = run.base_step if run.base_step is not None else first
    run.target_step = base + (wanted(run) or Verify()).steps
    return rt.steps.newest >= run.target_step


def too_slow(rt: JobRuntime, run: PlanRun) -> str:
    """Why the deadline passed."""
    if rt.steps.newest is None or run.target_step is None:
        return "no step was seen by the deadline"
    return f"step {rt.steps.newest} by the deadline, step {run.target_step} was wanted"


def healthy_again(rt: JobRuntime, run: PlanRun) -> bool:
    """A hang that ended by itself before its restart was ordered."""
    ordered, _ = _verbs(run)
    if run.kind is not Kind.HANG_NO_OUTPUT or Verb.RESTART in ordered or rt.job.attempt != run.attempt:
        return False
    return rt.steps.newest is not None and (run.start_step is None or rt.steps.newest > run.start_step)


def overtaken(run: PlanRun) -> bool:
    """A new attempt began that is not this plan's doing, and the plan still means to act on the old one."""
    ordered, ahead = _verbs(run)
    return Verb.RESTART not in ordered and bool(ahead & {Verb.RESTART, Verb.STOP, Verb.SIGNAL})


def ending_it(rt: JobRuntime) -> bool:
    """Whether it is we who end the attempt right now."""
    action = rt.run.in_flight if rt.run is not None else None
    return action is not None and action.verb is Verb.RESTART


def _verbs(run: PlanRun) -> tuple[set[Verb], set[Verb]]:
    """What was ordered so far, and what is ahead."""
    at = run.at + (run.in_flight is not None)
    verbs = [action.verb for action in run.plan.actions]
    return set(verbs[:at]), set(verbs[at:])


def refutes(rt: JobRuntime, incident: Incident) -> bool:
    """A fault on the attempt that a plan started, before that plan was verified: it did not help."""
    run = rt.run
    return (
        rt.stage is Stage.VERIFYING
        and run is not None
        and incident.id != run.plan.incident
        and run.restarts
        and incident.attempt > run.attempt
        and (incident.kind is run.kind or incident.kind not in _SLOWS)
    )


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
