"""Decisions as one line each: for transcripts, failures and people."""

from __future__ import annotations

from jobwatchdog.model import (
    ActionFinished,
    ActionOrdered,
    ApprovalWanted,
    Check,
    Decision,
    DetectorFailed,
    Event,
    Incident,
    IncidentChanged,
    JobRegistered,
    JobStateSeen,
    LogMatch,
    Plan,
    PlanMade,
    PlanRefused,
    ProcessSeen,
    ProcState,
    Signal,
    SignalsObserved,
    StepReport,
    Suspects,
)
from jobwatchdog.model.codec import encode, json_text


def line_of(decision: Decision) -> str:
    """One decision in words."""
    return f"{decision.now_s:.3f} {_words(decision)}"


def _words(decision: Decision) -> str:
    match decision:
        case IncidentChanged(incident=incident, why=why):
            return f"incident {_incident(incident)}: {why}"
        case PlanMade(plan=plan):
            return f"plan {_plan(plan)}"
        case PlanRefused(incident=id, policy=policy, checks=checks):
            return f"refused {id} by {policy or 'the engine'}: {_failed(checks)}"
        case ApprovalWanted(plan=plan):
            return f"approval wanted for {plan.id}"
        case ActionOrdered(action=action):
            args = json_text(dict(action.args))
            return f"order {action.verb} {action.key}" + ("" if args == "{}" else f" {args}")
        case DetectorFailed(detector=detector, error=error):
            return f"detector {detector} left out: {error}"
    return json_text(encode(decision))


def event_words(event: Event) -> str:
    """One event in words."""
    match event:
        case SignalsObserved(signals=signals):
            return " ".join(words for signal in signals if (words := _signal_words(signal)))
        case JobRegistered(job=job):
            return f"registered, attempt {job.attempt}"
        case ActionFinished(receipt=receipt):
            return f"receipt of {receipt.action}: {receipt.outcome} {receipt.detail}"
    return type(event).__name__


def _signal_words(signal: Signal) -> str:
    match signal:
        case StepReport(step=step):
            return f"step {step}"
        case JobStateSeen(state=state, attempt=attempt):
            return f"attempt {attempt} is {state}"
        case ProcessSeen(state=ProcState.RUNNING):
            return ""
        case LogMatch(kind=kind, role=role):
            return f"{role} {kind}"
    return type(signal).__name__


def _incident(incident: Incident) -> str:
    symptoms = f" (with {', '.join(incident.symptoms)})" if incident.symptoms else ""
    return f"{incident.id} {incident.state} {incident.kind}{symptoms}, suspects {_suspects(incident.suspects)}"


def _suspects(suspects: Suspects) -> str:
    named = {"nodes": suspects.nodes, "ranks": suspects.ranks, "gpus": suspects.gpus, "links": suspects.links}
    words = [f"{word} {','.join(map(str, names))}" for word, names in named.items() if names]
    return " ".join(words) or "unknown"


def _plan(plan: Plan) -> str:
    verbs = ", ".join(action.verb for action in plan.actions)
    return f"{plan.id} for {plan.incident} by {plan.policy}/{plan.rule} rung {plan.rung} ({plan.mode}): {verbs}"


def _failed(checks: tuple[Check, ...]) -> str:
    return "; ".join(f"{check.name}: {check.because}" for check in checks if not check.passed) or "no rule"
