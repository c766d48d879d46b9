"""Which rules of a policy apply to an incident, and why."""

from __future__ import annotations

from typing import Any

from jobwatchdog.model import Check, Incident, Job
from jobwatchdog.policy.conditions import Condition
from jobwatchdog.policy.durations import format_duration
from jobwatchdog.policy.model import Policy, Rule


def facts(incident: Incident, job: Job, now_s: float) -> dict[str, Any]:
    """Return the values that conditions may use; None = not known."""
    since = incident.onset_s if incident.onset_s is not None else incident.opened_s
    measures = incident.measures
    return {
        "incident.kind": incident.kind.value,
        "incident.cause_class": incident.cause_class.value,
        "incident.restart_helps": incident.restart_helps.value,
        "incident.confidence": float(incident.confidence),
        "incident.count": incident.count,
        "incident.attempt": incident.attempt,
        "incident.symptoms": [kind.value for kind in incident.symptoms],
        "incident.ranks": list(incident.suspects.ranks),
        "incident.nodes": list(incident.suspects.nodes),
        "incident.gpus": list(incident.suspects.gpus),
        "incident.links": list(incident.suspects.links),
        "incident.duration_s": float(measures.get("duration_s", max(0.0, now_s - since))),
        "incident.xid": incident.xid,
        "incident.onset_step": incident.onset_step,
        "incident.clock_ratio": _float(measures.get("clock_ratio")),
        "incident.temp_c": _float(measures.get("temp_c")),
        "incident.silence_s": _float(measures.get("silence_s")),
        "incident.loss": _float(measures.get("loss")),
        "incident.measures": {name: float(value) for name, value in sorted(measures.items())},
        "incident.summary": incident.summary,
        "job.id": str(job.id),
        "job.name": job.name,
        "job.user": job.user,
        "job.launcher": job.launcher,
        "job.attempt": job.attempt,
        "job.world_size": job.world_size,
        "job.labels": dict(job.labels),
    }


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _ask(name: str, condition: Condition, values: dict[str, Any]) -> Check:
    verdict = condition.ask(values)
    return Check(name=name, passed=verdict.value is True, because=verdict.because)


def selects(policy: Policy, incident: Incident, job: Job, now_s: float) -> Check:
    """Say whether the policy is meant for this job."""
    name = f"policy {policy.name} select"
    if policy.spec.select is None:
        return Check(name=name, passed=True, because="selects every job")
    return _ask(name, policy.spec.select, facts(incident, job, now_s))


def match_rule(rule: Rule, incident: Incident, job: Job, now_s: float) -> Check:
    """Say whether one rule applies."""
    name = f"rule {rule.name}"
    if incident.kind not in rule.on:
        return Check(name=name, passed=False, because=f"{incident.kind} is not among {', '.join(rule.on)}")
    values = facts(incident, job, now_s)
    if rule.for_ is not None and values["incident.duration_s"] < rule.for_:
        lasted = f"lasts {format_duration(round(values['incident.duration_s']))}, {format_duration(rule.for_)} wanted"
        return Check(name=name, passed=False, because=lasted)
    if rule.when is None:
        return Check(name=name, passed=True, because=f"on {incident.kind}")
    return _ask(name, rule.when, values)


def matching_rules(policy: Policy, incident: Incident, job: Job, now_s: float) -> list[tuple[Rule, tuple[Check, ...]]]:
    """Return the rules that apply, in their order, each with the checks up to it."""
    found: list[tuple[Rule, tuple[Check, ...]]] = []
    checks: list[Check] = [selects(policy, incident, job, now_s)]
    if not checks[0].passed:
        return []
    for rule in policy.spec.rules:
        checks.append(match_rule(rule, incident, job, now_s))
        if checks[-1].passed:
            found.append((rule, tuple(checks)))
    return found
