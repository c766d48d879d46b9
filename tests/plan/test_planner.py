"""Plans and the guards around them: what is done, how often, and what is never done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobwatchdog.model import (
    KIND_DEFAULTS,
    Incident,
    IncidentId,
    Job,
    JobId,
    Kind,
    Mode,
    Outcome,
    PastAction,
    Plan,
    PlanMade,
    PlanRefused,
    Receipt,
    RestartHelps,
    Suspects,
    Verb,
)
from jobwatchdog.plan import Planner
from jobwatchdog.plan.explain import explain
from jobwatchdog.policy.load import check_policy, load_policy

JOB = Job(id=JobId("job"), launcher="slurm", can_restart=True)

RULES = """
    - name: hang
      on: [hang_no_output]
      ladder:
        - do: [{restart: {}}]
        - do: [{restart: {exclude_nodes: suspects, nccl: {algo: tree}}}]
        - do: [{notify: {to: oncall}}]
      reset_after: 24h
      verify: {steps_advance: 20, within: 15m}
    - name: gpu
      on: [gpu_lost]
      ladder:
        - do: [{drain: {nodes: suspects}}, {restart: {exclude_nodes: suspects}}]
      verify: {steps_advance: 20, within: 15m}
    - name: sm
      on: [sm_failure]
      ladder:
        - do: [failover_sm]
    - name: crash
      on: [rank_crash, unknown_failure]
      ladder:
        - do: [{restart: {}}]
      verify: {steps_advance: 20, within: 15m}
    - name: signal
      on: [straggler]
      ladder:
        - do: [{signal: {signal: SIGUSR1, ranks: suspects}}]
"""

GUARDS = """
    restarts: {max: 3, per: 6h}
    drains: {max: 4, max_fraction: 0.05, per: 24h}
    breaker: {failed_actions: 2, within: 30m}
    stale_after: 10m
    protect_nodes: ["login-*"]
    approval: [failover_sm]
"""


def planner(mode: str = "enforce", guards: str = GUARDS, fleet_nodes: int | None = None) -> Planner:
    text = "apiVersion: jobwatchdog/v1\nkind: Policy\nmetadata: {name: test}\nspec:\n"
    return Planner([load_policy(f"{text}  mode: {mode}\n  rules:{RULES}  guardrails:{guards}", "p.yaml")], fleet_nodes)


def incident(kind: Kind, number: int = 1, **changes: Any) -> Incident:
    values: dict[str, Any] = {
        "id": IncidentId(f"i-{number}"), "job": JOB.id, "attempt": 0, "kind": kind, "confidence": 0.9,
        "cause_class": KIND_DEFAULTS[kind].cause_class, "restart_helps": KIND_DEFAULTS[kind].restart_helps,
        "suspects": Suspects(),
    }  # fmt: skip
    return Incident(**{**values, **changes})


def made(answer: object) -> Plan:
    assert isinstance(answer, PlanMade), answer
    return answer.plan


def failed(answer: object) -> set[str]:
    assert isinstance(answer, PlanRefused), answer
    return {check.name for check in answer.checks if not check.passed and not check.name.startswith("rule ")}


def started(on: Planner, kind: Kind, number: int, now_s: float, **changes: Any) -> Plan:
    plan = made(on.decide(incident(kind, number, **changes), replace(JOB, attempt=number), now_s))
    on.plan_started(plan, now_s)
    return plan


# ---- rungs ------------------------------------------------------------------------------------------


def test_each_recurrence_climbs_a_rung_until_the_last() -> None:
    """The last one stays."""
    on = planner()
    rungs = [started(on, Kind.HANG_NO_OUTPUT, i, i * 600.0).rung for i in range(1, 5)]
    assert rungs == [1, 2, 3, 3]


def test_the_ladder_starts_anew_after_reset_after() -> None:
    """A day later it is another story."""
    on = planner()
    started(on, Kind.HANG_NO_OUTPUT, 1, 0.0)
    assert started(on, Kind.HANG_NO_OUTPUT, 2, 86_401.0).rung == 1


def test_another_cause_or_another_job_has_its_own_ladder() -> None:
    """Recurrence means the same cause on the same job."""
    on = planner()
    started(on, Kind.RANK_CRASH, 1, 0.0)
    assert started(on, Kind.UNKNOWN_FAILURE, 2, 1.0).rung == 1
    other = incident(Kind.HANG_NO_OUTPUT, 3, job=JobId("other"))
    assert made(on.decide(other, replace(JOB, id=JobId("other")), 2.0)).rung == 1


def test_a_failure_at_the_same_step_gets_no_plain_restart_again() -> None:
    """It would end there once more."""
    on = planner()
    started(on, Kind.RANK_CRASH, 1, 0.0, onset_step=77)
    again = on.decide(incident(Kind.RANK_CRASH, 2, onset_step=77), JOB, 60.0)
    assert failed(again) == {"guardrail same step"}
    assert made(on.decide(incident(Kind.RANK_CRASH, 3, onset_step=90), JOB, 61.0)).rule == "crash"


def test_an_override_does_not_outlive_its_rung() -> None:
    """The next restart carries only its own arguments."""
    on = planner()
    first, second = started(on, Kind.HANG_NO_OUTPUT, 1, 0.0), started(on, Kind.HANG_NO_OUTPUT, 2, 60.0)
    on.verify_failed(second.id, 120.0)
    third = started(on, Kind.RANK_CRASH, 3, 180.0)
    assert ["nccl" in plan.actions[0].args for plan in (first, second, third)] == [False, True, False]


# ---- suspects ---------------------------------------------------------------------------------------


def test_suspects_are_named_in_the_plan() -> None:
    """By node."""
    plan = made(planner().decide(incident(Kind.GPU_LOST, suspects=Suspects(nodes=("n1",))), JOB, 0.0))
    assert [(a.verb, a.args.get("nodes") or a.args.get("exclude_nodes")) for a in plan.actions] == [
        (Verb.DRAIN, ["n1"]),
        (Verb.RESTART, ["n1"]),
    ]
    assert plan.actions[0].key == "drain:n1:i-1"
    assert plan.actions[1].key == "restart:job:0"


def test_no_suspect_means_no_drain_and_no_restart_in_vain() -> None:
    """Nothing is guessed, and why is told."""
    answer = planner().decide(incident(Kind.GPU_LOST), JOB, 0.0)
    assert failed(answer) >= {"note drain", "guardrail nothing left"}


def test_without_a_suspect_a_restart_that_may_help_still_happens() -> None:
    """On any node, and it says so."""
    answer = planner().decide(incident(Kind.GPU_LOST, restart_helps=RestartHelps.MAYBE), JOB, 0.0)
    assert [action.verb for action in made(answer).actions] == [Verb.RESTART]
    assert isinstance(answer, PlanMade)
    assert "no suspect node is known" in " ".join(check.because for check in answer.checks)


def test_a_protected_node_is_never_drained() -> None:
    """The others are."""
    suspects = Suspects(nodes=("login-1", "n2"))
    plan = made(planner().decide(incident(Kind.GPU_LOST, suspects=suspects), JOB, 0.0))
    assert plan.actions[0].args["nodes"] == ["n2"]
    alone = planner().decide(incident(Kind.GPU_LOST, suspects=Suspects(nodes=("login-1",))), JOB, 0.0)
    verbs = [action.verb for action in alone.plan.actions] if isinstance(alone, PlanMade) else []
    assert Verb.DRAIN not in verbs


def test_a_signal_goes_to_suspects_only_if_there_are_any() -> None:
    """Never to all instead."""
    assert "note signal" in failed(planner().decide(incident(Kind.STRAGGLER), JOB, 0.0))
    plan = made(planner().decide(incident(Kind.STRAGGLER, suspects=Suspects(ranks=(3,))), JOB, 0.0))
    assert plan.actions[0].args["ranks"] == [3]


# ---- guardrails -------------------------------------------------------------------------------------


def test_the_budget_of_restarts_is_spent_across_rules() -> None:
    """Three in six hours, whatever they were for; time gives them back."""
    on = planner()
    for i, kind in enumerate((Kind.HANG_NO_OUTPUT, Kind.RANK_CRASH, Kind.UNKNOWN_FAILURE)):
        started(on, kind, i, i * 60.0)
    again = incident(Kind.HANG_NO_OUTPUT, 9)
    assert failed(on.decide(again, JOB, 300.0)) == {"guardrail restarts"}
    assert made(on.decide(again, JOB, 6 * 3600.0 + 1)).rung == 2


def test_a_second_hang_spends_the_budget() -> None:
    """A budget of one."""
    on = planner(guards=GUARDS.replace("max: 3, per", "max: 1, per"))
    started(on, Kind.HANG_NO_OUTPUT, 1, 0.0)
    answer = on.decide(incident(Kind.HANG_NO_OUTPUT, 2), JOB, 60.0)
    assert failed(answer) == {"guardrail restarts"}
    assert isinstance(answer, PlanRefused)
    assert "1 of 1 spent within 6h" in [c.because for c in answer.checks if not c.passed]


def test_what_was_ordered_before_a_restart_of_the_watchdog_counts() -> None:
    """The ledger's history is the same budget."""
    before = planner()
    plans = [started(before, Kind.HANG_NO_OUTPUT, i, i * 60.0) for i in range(2)]
    on = planner(guards=GUARDS.replace("max: 3, per", "max: 2, per"))
    past = [
        PastAction(action=a, policy="test", rule="hang", rung=p.rung, kind=Kind.HANG_NO_OUTPUT, ordered_s=60.0)
        for p in plans
        for a in p.actions
    ]
    on.load_history([*past, *past])
    assert failed(on.decide(incident(Kind.RANK_CRASH, 5), JOB, 120.0)) == {"guardrail restarts"}


@pytest.mark.parametrize(
    ("fleet", "nodes", "allowed"), [(40, 2, True), (40, 3, False), (None, 4, True), (None, 5, False)]
)
def test_drains_are_bounded_over_the_fleet(fleet: int | None, nodes: int, allowed: bool) -> None:
    """By number and by share."""
    suspects = Suspects(nodes=tuple(f"n{i}" for i in range(nodes)))
    answer = planner(fleet_nodes=fleet).decide(incident(Kind.GPU_LOST, suspects=suspects), JOB, 0.0)
    assert isinstance(answer, PlanMade) is allowed


def test_the_breaker_opens_after_failures_and_only_a_person_closes_it() -> None:
    """Time does not."""
    on = planner()
    for i in range(2):
        plan = started(on, Kind.HANG_NO_OUTPUT, i, i * 60.0)
        on.action_finished(Receipt(action=plan.actions[0].id, outcome=Outcome.FAILED), i * 60.0 + 1)
    assert failed(on.decide(incident(Kind.RANK_CRASH, 7), JOB, 200.0)) == {"guardrail breaker"}
    assert "guardrail breaker" in failed(on.decide(incident(Kind.RANK_CRASH, 7), JOB, 1e6))
    on.close_breaker("test")
    assert made(on.decide(incident(Kind.RANK_CRASH, 7), JOB, 1e6 + 1)).rule == "crash"


def test_an_open_breaker_still_lets_people_be_told() -> None:
    """Only what can do harm is held back."""
    on = planner(guards=GUARDS.replace("failed_actions: 2", "failed_actions: 1"))
    for i in range(2):
        plan = made(on.decide(incident(Kind.HANG_NO_OUTPUT, i), replace(JOB, attempt=i), float(i)))
        on.plan_started(plan, float(i))
    on.verify_failed(plan.id, 10.0)
    assert [a.verb for a in made(on.decide(incident(Kind.HANG_NO_OUTPUT, 5), JOB, 20.0)).actions] == [Verb.NOTIFY]


def test_nothing_destructive_is_done_on_a_doubt() -> None:
    """Below one half, and no policy may say otherwise."""
    assert failed(planner().decide(incident(Kind.RANK_CRASH, confidence=0.49), JOB, 0.0)) == {"guardrail confidence"}
    with pytest.raises(ValueError, match="min_confidence"):
        planner(guards=GUARDS + "    min_confidence: 0.1\n")


def test_every_action_of_a_plan_goes_stale() -> None:
    """Not begun ten minutes later, it is dropped."""
    plan = made(planner().decide(incident(Kind.RANK_CRASH), JOB, 1000.0))
    assert [action.not_after_s for action in plan.actions] == [1600.0]


def test_observe_makes_plans_that_nobody_may_carry_out() -> None:
    """Its mode travels with the plan."""
    assert made(planner("observe").decide(incident(Kind.RANK_CRASH), JOB, 0.0)).mode is Mode.OBSERVE
    assert made(planner("observe").decide(incident(Kind.SM_FAILURE), JOB, 0.0)).mode is Mode.OBSERVE


def test_an_action_on_the_approval_list_asks_even_where_all_else_acts() -> None:
    """And in approve mode everything does."""
    assert made(planner().decide(incident(Kind.SM_FAILURE), JOB, 0.0)).mode is Mode.APPROVE
    assert made(planner().decide(incident(Kind.RANK_CRASH), JOB, 0.0)).mode is Mode.ENFORCE
    assert made(planner("approve").decide(incident(Kind.RANK_CRASH), JOB, 0.0)).mode is Mode.APPROVE


def test_the_same_question_has_the_same_answer() -> None:
    """Ids included."""
    assert planner().decide(incident(Kind.GPU_LOST), JOB, 5.0) == planner().decide(incident(Kind.GPU_LOST), JOB, 5.0)
    one, two = (made(planner().decide(incident(Kind.RANK_CRASH), JOB, 5.0)) for _ in range(2))
    assert one == two
    assert one.actions[0].id == f"{one.id}.1"


def test_a_bug_is_never_restarted_whatever_a_policy_says() -> None:
    """The language refuses it; a policy that came by another way is stopped by the planner."""
    text = "apiVersion: jobwatchdog/v1\nkind: Policy\nmetadata: {name: test}\nspec:\n  mode: enforce\n  rules:\n"
    bad = "    - {name: bug, on: [config_or_code_bug], ladder: [{do: [restart]}]}\n"
    with pytest.raises(ValueError, match="never restarted"):
        load_policy(text + bad, "p.yaml")
    policy, _ = check_policy(text + bad, "p.yaml")
    assert policy is not None
    answer = Planner([policy]).decide(incident(Kind.CONFIG_OR_CODE_BUG, confidence=1.0), JOB, 0.0)
    assert failed(answer) == {"guardrail same bug"}


# ---- explain ----------------------------------------------------------------------------------------


def test_explain_shows_every_rule_and_guard_with_its_values() -> None:
    """As plain data."""
    on = planner()
    found = explain(on.policies, incident(Kind.RANK_CRASH), JOB, 0.0, on)
    (policy,) = found["policies"] if isinstance(found["policies"], list) else []
    assert isinstance(policy, dict)
    rules = policy["rules"]
    assert isinstance(rules, list)
    assert [rule["taken"] for rule in rules if isinstance(rule, dict)] == [False, False, False, True, False]
    checks = found["checks"]
    assert isinstance(checks, list)
    assert {"name": "guardrail restarts", "passed": True, "because": "0 of 3 spent within 6h"} in checks
    actions = [{"restart": {"from": "last_good_checkpoint"}}]
    assert found["plan"] == {"rule": "crash", "rung": 1, "mode": "enforce", "actions": actions}
