"""From an incident to a plan: rule, rung, guardrails; every question asked leaves a Check."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from jobwatchdog.model import (
    DESTRUCTIVE,
    Action,
    ActionId,
    ApprovalGiven,
    Check,
    Incident,
    Job,
    Json,
    Kind,
    Mode,
    PastAction,
    Plan,
    PlanId,
    PlanMade,
    PlanRefused,
    Receipt,
    RestartHelps,
    Verb,
    Verify,
)
from jobwatchdog.plan.budgets import History
from jobwatchdog.policy.durations import format_duration
from jobwatchdog.policy.match import match_rule, selects
from jobwatchdog.policy.model import CHANGES_THE_RUN, Policy, Rule, Rung, Step

UNSTARTED_MAX = 10_000  # plans remembered that nobody started: all of a policy that observes


@dataclass(slots=True)
class _Draft:
    """A plan in the making: checks so far, and whether they allow it."""

    checks: list[Check] = field(default_factory=list)

    def ask(self, name: str, passed: bool, because: str) -> bool:
        self.checks.append(Check(name=name, passed=passed, because=because))
        return passed

    @property
    def allowed(self) -> bool:
        return all(check.passed for check in self.checks if not check.name.startswith(("rule ", "rung ", "note ")))


class Planner:
    """Chooses plans within the guardrails of the policies. Deterministic: ids come from content."""

    def __init__(self, policies: Sequence[Policy], fleet_nodes: int | None = None) -> None:
        self.policies = list(policies)
        self.fleet_nodes = fleet_nodes
        self._by_name = {policy.name: policy for policy in self.policies}
        self._history = History()
        self._onsets: dict[PlanId, tuple[Kind, int | None]] = {}

    # ---- what happened --------------------------------------------------------------------------

    def load_history(self, past: Sequence[PastAction]) -> None:
        """Take what an earlier life ordered."""
        self._history.load(past)
        for name, times in self._history.failures.items():
            policy = self._by_name.get(name)
            if policy is None or name in self._history.open_breakers:
                continue
            breaker = policy.spec.guardrails.breaker
            if sum(1 for t in times if max(times) - t < breaker.within) >= breaker.failed_actions:
                self._history.open_breakers[name] = f"{len(times)} failures on record"

    def plan_started(self, plan: Plan, now_s: float) -> None:
        """Its actions count from now on."""
        kind, onset_step = self._onsets.pop(plan.id, (Kind.UNKNOWN_FAILURE, None))
        self._history.started(plan, kind, onset_step, now_s)

    def action_finished(self, receipt: Receipt, now_s: float) -> None:
        """Count a failure against the breaker."""
        policy = self._history.finished(receipt, now_s)
        if policy is not None:
            self._failed(policy, now_s)

    def verify_failed(self, plan_id: PlanId, now_s: float) -> None:
        """The plan did not help."""
        past = self._history.plans.get(plan_id)
        if past is not None and not past.failed:
            past.failed = True
            self._failed(past.policy, now_s)

    def verify_passed(self, plan_id: PlanId, now_s: float) -> None:
        """The plan helped; its rung counts all the same, for a recurrence."""

    def approval(self, event: ApprovalGiven) -> None:
        """Nothing to count: the engine starts or drops the plan."""

    def close_breaker(self, policy: str) -> None:
        """A person looked; plans may be made again."""
        self._history.close_breaker(policy)

    def _failed(self, policy: str, now_s: float) -> None:
        if (found := self._by_name.get(policy)) is not None:
            breaker = found.spec.guardrails.breaker
            self._history.fail(policy, now_s, breaker.failed_actions, breaker.within)

    # ---- what to do -----------------------------------------------------------------------------

    def decide(self, incident: Incident, job: Job, now_s: float) -> PlanMade | PlanRefused | None:
        """Return the plan of the first rule that applies, or why there is none; None without any policy."""
        refused: PlanRefused | None = None
        for policy in self.policies:
            chosen = selects(policy, incident, job, now_s)
            if not chosen.passed:
                refused = refused or _refused(incident, policy, [chosen], now_s)
                continue
            checks = [chosen]
            for rule in policy.spec.rules:
                checks.append(match_rule(rule, incident, job, now_s))
                if checks[-1].passed:
                    return self._by_rule(policy, rule, incident, job, checks, now_s)
            return _refused(incident, policy, checks, now_s)
        return refused

    def _by_rule(
        self, policy: Policy, rule: Rule, incident: Incident, job: Job, checks: list[Check], now_s: float
    ) -> PlanMade | PlanRefused:
        draft = _Draft(list(checks))
        number, rung = self._rung(policy, rule, incident, draft, now_s)
        if rung is None:
            return _refused(incident, policy, draft.checks, now_s)
        plan = self._plan(policy, rule, number, rung, incident, job, draft, now_s)
        self._guards(policy, plan, incident, draft, now_s)
        if plan is None or not draft.allowed:
            return _refused(incident, policy, draft.checks, now_s)
        self._onsets[plan.id] = (incident.kind, incident.onset_step)
        if len(self._onsets) > UNSTARTED_MAX:
            del self._onsets[next(iter(self._onsets))]
        return PlanMade(now_s=now_s, plan=plan, checks=tuple(draft.checks))

    def _rung(
        self, policy: Policy, rule: Rule, incident: Incident, draft: _Draft, now_s: float
    ) -> tuple[int, Rung | None]:
        past = self._history.rungs(policy.name, rule.name, incident.job, incident.kind, now_s - rule.reset_after)
        last = len(rule.ladder)
        number = min(len(past) + 1, last)
        window = format_duration(rule.reset_after)
        draft.ask(f"rung {number} of {last}", True, f"{len(past)} earlier plans for this cause within {window}")
        if not self._deterministic(past, incident):
            return number, rule.ladder[number - 1]
        same = f"{incident.kind} again at step {incident.onset_step}: a plain restart would end there once more"
        for later in range(number, last + 1):
            if not any(_plain_restart(step) for step in rule.ladder[later - 1].do):
                draft.ask(f"rung {later} of {last}", True, same)
                return later, rule.ladder[later - 1]
        draft.ask("guardrail same step", False, same)
        return number, None

    @staticmethod
    def _deterministic(past: Sequence[object], incident: Incident) -> bool:
        steps = [getattr(p, "onset_step", None) for p in past]
        return incident.onset_step is not None and incident.onset_step in steps

    def _plan(
        self,
        policy: Policy,
        rule: Rule,
        number: int,
        rung: Rung,
        incident: Incident,
        job: Job,
        draft: _Draft,
        now_s: float,
    ) -> Plan | None:
        # How many plans this job had tells apart two for one incident, also across a restart of the watchdog,
        # after which the incident is found anew under the same id.
        before = sum(1 for past in self._history.plans.values() if past.job == job.id)
        place = (str(number), incident.id, str(job.attempt), str(incident.revision), str(before))
        plan_id = PlanId(_digest(policy.name, rule.name, *place))
        actions: list[Action] = []
        dropped: list[Verb] = []
        for index, step in enumerate(rung.do):
            args = _resolved(step, policy, incident, draft)
            if args is None:
                dropped.append(step.verb)
                continue
            if _useless(step.verb, args, dropped, incident):
                dropped.append(step.verb)
                words = "without the drain it would run on the same machines, where it does not help"
                draft.ask("note restart", True, f"left out: {words}")
                continue
            actions.append(
                Action(
                    id=ActionId(f"{plan_id}.{index + 1}"),
                    key=_key(step.verb, args, incident, job, plan_id, index),
                    verb=step.verb,
                    job=job.id,
                    attempt=job.attempt,
                    incident=incident.id,
                    plan=plan_id,
                    args=args,
                    not_after_s=now_s + policy.spec.guardrails.stale_after,
                )
            )
        if not actions:
            draft.ask("guardrail nothing left", False, f"left out: {', '.join(dropped)}; see the notes")
            return None
        # New steps prove nothing where the restart was left out: the job was not ended.
        verify = None if Verb.RESTART in dropped else rung.verify or rule.verify
        return Plan(
            id=plan_id,
            incident=incident.id,
            job=job.id,
            policy=policy.name,
            rule=rule.name,
            rung=number,
            mode=_mode(policy, rung),
            actions=tuple(actions),
            verify=Verify(steps=verify.steps_advance, within_s=verify.within) if verify else None,
        )

    def _guards(self, policy: Policy, plan: Plan | None, incident: Incident, draft: _Draft, now_s: float) -> None:
        if plan is None or not any(action.verb in DESTRUCTIVE for action in plan.actions):
            return
        guards = policy.spec.guardrails
        floor = guards.min_confidence
        draft.ask(
            "guardrail confidence",
            incident.confidence >= floor,
            f"{incident.confidence:.2f}, at least {floor:g} wanted",
        )
        why = self._history.open_breakers.get(policy.name)
        draft.ask("guardrail breaker", why is None, why or "closed")
        verbs = [action.verb for action in plan.actions]
        if Verb.RESTART in verbs:
            bug = incident.kind is Kind.CONFIG_OR_CODE_BUG
            draft.ask("guardrail same bug", not bug, "a bug is never restarted" if bug else f"{incident.kind}")
            spent, budget = self._history.restarts(incident.job, now_s - guards.restarts.per), guards.restarts
            draft.ask(
                "guardrail restarts",
                spent < budget.max,
                f"{spent} of {budget.max} spent within {format_duration(budget.per)}",
            )
        if Verb.DRAIN in verbs:
            self._drain_guard(policy, plan, draft, now_s)

    def _drain_guard(self, policy: Policy, plan: Plan, draft: _Draft, now_s: float) -> None:
        budget = policy.spec.guardrails.drains
        wanted = {str(n) for a in plan.actions if a.verb is Verb.DRAIN for n in _list(a.args.get("nodes"))}
        out = set(self._history.drained(now_s - budget.per)) | wanted
        words = f"{len(out)} with these, {budget.max} allowed within {format_duration(budget.per)}"
        draft.ask("guardrail drains", len(out) <= budget.max, words)
        if self.fleet_nodes:
            most = max(1, int(budget.max_fraction * self.fleet_nodes))
            share = f"{len(out)} of {self.fleet_nodes} nodes, {most} allowed ({budget.max_fraction:.0%})"
            draft.ask("guardrail drains fraction", len(out) <= most, share)


def _resolved(step: Step, policy: Policy, incident: Incident, draft: _Draft) -> dict[str, Json] | None:
    """Return the step's arguments with suspects named; None (and a failed check) where they cannot be."""
    args = step.args()
    nodes = list(incident.suspects.nodes)
    if step.restart is not None and args.get("exclude_nodes") == "suspects":
        args["exclude_nodes"] = list[Json](nodes)
        words = f"away from {', '.join(nodes)}" if nodes else "no suspect node is known: on any node"
        draft.ask("note exclude_nodes", True, words)
    if step.drain is not None or step.undrain is not None:
        named = nodes if args["nodes"] == "suspects" else [str(node) for node in _list(args["nodes"])]
        globs = policy.spec.guardrails.protect_nodes
        kept = [node for node in named if not any(fnmatchcase(node, glob) for glob in globs)]
        if len(kept) < len(named):
            protected = ", ".join(sorted(set(named) - set(kept)))
            draft.ask("note protect_nodes", bool(kept), f"never drained: {protected}")
        if not named:
            words = "left out: no node is known to be at fault; nothing is guessed"
            draft.ask(f"note {step.verb}", False, words)
        if not kept:
            return None
        args["nodes"] = list[Json](kept)
    if step.signal is not None:
        ranks: list[Json] | None = list(incident.suspects.ranks) if args["ranks"] == "suspects" else None
        if ranks is not None and not ranks:
            draft.ask("note signal", False, "left out: no rank is known to be at fault; nothing is guessed")
            return None
        if ranks is not None:
            args["ranks"] = ranks
    return args


def _useless(verb: Verb, args: dict[str, Json], dropped: list[Verb], incident: Incident) -> bool:
    """A restart that was to follow a drain which names no node, for a fault that only other machines cure."""
    if verb is not Verb.RESTART or Verb.DRAIN not in dropped or incident.restart_helps is not RestartHelps.NO:
        return False
    return not any(args.get(name) for name in CHANGES_THE_RUN)


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _plain_restart(step: Step) -> bool:
    return step.restart is not None and not step.changes_the_run


def _mode(policy: Policy, rung: Rung) -> Mode:
    if policy.spec.mode is not Mode.ENFORCE:
        return policy.spec.mode
    asks = {*policy.spec.guardrails.approval, Verb.ASK}
    return Mode.APPROVE if any(step.verb in asks for step in rung.do) else Mode.ENFORCE


def _key(verb: Verb, args: dict[str, Json], incident: Incident, job: Job, plan: PlanId, index: int) -> str:
    """Return what may happen only once in the world."""
    if verb is Verb.RESTART:
        return f"restart:{job.id}:{job.attempt}"
    if verb in (Verb.DRAIN, Verb.UNDRAIN):
        return f"{verb}:{','.join(str(n) for n in _list(args.get('nodes')))}:{incident.id}"
    if verb in (Verb.STOP, Verb.HOLD):
        return f"{verb}:{job.id}:{job.attempt}"
    return f"{verb}:{plan}:{index + 1}"


def _refused(incident: Incident, policy: Policy, checks: list[Check], now_s: float) -> PlanRefused:
    return PlanRefused(now_s=now_s, incident=incident.id, policy=policy.name, checks=tuple(checks))


def _digest(*parts: str) -> str:
    return "p-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
