"""For one incident: every policy, rule and guard that was asked, with the values that decided it, as plain data."""

from __future__ import annotations

from collections.abc import Sequence

from jobwatchdog.model import Check, Incident, Job, Json, PlanMade
from jobwatchdog.plan.planner import Planner
from jobwatchdog.policy.match import facts, match_rule, selects
from jobwatchdog.policy.model import Policy


def explain(
    policies: Sequence[Policy], incident: Incident, job: Job, now_s: float, planner: Planner | None = None
) -> dict[str, Json]:
    """Return the facts, every policy with all its rules (also those after the first that applies), and the verdict.

    `planner` brings its history of budgets and rungs; without one, nothing has happened yet.
    """
    decision = (planner or Planner(policies)).decide(incident, job, now_s)
    verdict: dict[str, Json] = {"plan": None, "policy": None, "checks": []}
    if decision is not None:
        verdict["checks"] = [_check(check) for check in decision.checks]
    if isinstance(decision, PlanMade):
        plan = decision.plan
        verdict["policy"] = plan.policy
        verdict["plan"] = {
            "rule": plan.rule,
            "rung": plan.rung,
            "mode": plan.mode.value,
            "actions": [{action.verb.value: dict(action.args)} for action in plan.actions],
        }
    elif decision is not None:
        verdict["policy"] = decision.policy
    return {
        "incident": str(incident.id),
        "facts": dict(facts(incident, job, now_s)),
        "policies": [_policy(policy, incident, job, now_s) for policy in policies],
        **verdict,
    }


def _policy(policy: Policy, incident: Incident, job: Job, now_s: float) -> Json:
    chosen = selects(policy, incident, job, now_s)
    rules = [match_rule(rule, incident, job, now_s) for rule in policy.spec.rules]
    taken = next((check.name for check in rules if check.passed), None) if chosen.passed else None
    return {
        "name": policy.name,
        "file": policy.file,
        "select": _check(chosen),
        "rules": [{**_check(check), "taken": check.name == taken} for check in rules],
    }


def _check(check: Check) -> dict[str, Json]:
    return {"name": check.name, "passed": check.passed, "because": check.because}
