"""What the language allows and yet is wrong: errors where harm would follow, warnings elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jobwatchdog.model import DESTRUCTIVE, KIND_DEFAULTS, Kind, Mode, RestartHelps, Verb
from jobwatchdog.policy.document import Document, Path, Problem, nearest
from jobwatchdog.policy.model import Policy, Rule, Rung, Step


@dataclass(frozen=True, slots=True)
class _Page:
    """Makes problems at a path of one document."""

    document: Document

    def warn(self, path: Path, message: str, hint: str = "") -> Problem:
        return self._at(self.document.place(path), message, hint, True)

    def refuse(self, path: Path, message: str, hint: str = "") -> Problem:
        return self._at(self.document.place(path), message, hint, False)

    def warn_key(self, path: Path, message: str, hint: str = "") -> Problem:
        return self._at(self.document.key_place(path), message, hint, True)

    def _at(self, place: tuple[int, int], message: str, hint: str, warning: bool) -> Problem:
        return Problem(self.document.file, *place, message, hint, warning)


def lints(policy: Policy, document: Document) -> Iterator[Problem]:
    """All of them, in no order."""
    page = _Page(document)
    yield from _head(policy, page)
    yield from _shadowed(policy, page)
    for i, rule in enumerate(policy.spec.rules):
        yield from _rule(policy, rule, ("spec", "rules", i), page)


def _head(policy: Policy, page: _Page) -> Iterator[Problem]:
    spec, written = policy.spec, policy.spec.model_fields_set
    if "mode" not in written:
        hint = "write `mode: enforce` when its replays look right"
        yield page.warn_key(("spec",), "no mode given: this policy only observes", hint)
    if spec.select is not None and spec.select.constant is False:
        yield page.warn(("spec", "select"), "never true: the policy applies to no job")
    if spec.mode is Mode.OBSERVE:
        return
    given = spec.guardrails.model_fields_set
    verbs = {step.verb for rule in spec.rules for rung in rule.ladder for step in rung.do}
    for verb, name in ((Verb.RESTART, "restarts"), (Verb.DRAIN, "drains")):
        if verb in verbs and name not in given:
            budget = spec.guardrails.restarts if verb is Verb.RESTART else spec.guardrails.drains
            text = f"`{verb}` without a budget: the default of {budget.words} holds"
            yield page.warn_key(("spec", "rules"), text, f"write it under guardrails.{name}")


def _shadowed(policy: Policy, page: _Page) -> Iterator[Problem]:
    """The first rule that applies is taken, so one without a condition leaves nothing of its kinds to later ones."""
    taken: dict[Kind, str] = {}
    names: set[str] = set()
    for i, rule in enumerate(policy.spec.rules):
        at: Path = ("spec", "rules", i)
        if rule.name in names:
            yield page.refuse((*at, "name"), f"the rule name {rule.name!r} is taken by an earlier rule")
        names.add(rule.name)
        gone = [kind for kind in rule.on if kind in taken]
        if len(gone) == len(rule.on):
            earlier = ", ".join(sorted({taken[kind] for kind in gone}))
            yield page.warn((*at, "on"), f"never reached: the earlier rule {earlier} takes every {', '.join(gone)}")
        elif gone and rule.when is None:
            for kind in gone:
                place = (*at, "on", rule.on.index(kind))
                yield page.warn(place, f"never reached for {kind}: the earlier rule {taken[kind]} takes it")
        if rule.when is not None and rule.when.constant is False:
            yield page.warn((*at, "when"), "never true: the rule applies to nothing")
        if rule.for_ is None and (rule.when is None or rule.when.constant is True):
            for kind in rule.on:
                taken.setdefault(kind, rule.name)


def _rule(policy: Policy, rule: Rule, at: Path, page: _Page) -> Iterator[Problem]:
    restarts = [j for j, rung in enumerate(rule.ladder) if any(step.restart is not None for step in rung.do)]
    if Kind.CONFIG_OR_CODE_BUG in rule.on and restarts:
        place = (*at, "on", rule.on.index(Kind.CONFIG_OR_CODE_BUG))
        hint = "the same bug would only burn the same GPU hours again; give it a rule of its own with notify"
        yield page.refuse(place, "config_or_code_bug is never restarted", hint)
    budget = policy.spec.guardrails.restarts
    for j in restarts[budget.max :]:
        text = f"unreachable rung: it would be restart {restarts.index(j) + 1} of {budget.words}"
        yield page.warn((*at, "ladder", j), text, "raise guardrails.restarts or shorten the ladder")
    for j, rung in enumerate(rule.ladder):
        yield from _rung(policy, rule, rung, (*at, "ladder", j), page)


def _rung(policy: Policy, rule: Rule, rung: Rung, at: Path, page: _Page) -> Iterator[Problem]:
    verbs = [step.verb for step in rung.do]
    if Verb.RESTART in verbs and rule.verify is None and rung.verify is None:
        place = (*at, "do", verbs.index(Verb.RESTART))
        yield page.warn(place, "a restart without `verify`", "default: 1 new step within 15m")
    if verbs.count(Verb.RESTART) > 1:
        yield page.refuse(at, "two restarts in one rung", "give each a rung of its own")
    for k, step in enumerate(rung.do):
        here = (*at, "do", k)
        yield from _step(policy, step, here, page)
        if step.verb in DESTRUCTIVE and step.verb is not Verb.EXEC and Verb.STOP in verbs[:k]:
            yield page.warn(here, f"`{step.verb}` after `stop` has nothing to act on")
        if step.verb is Verb.COLLECT and {Verb.STOP, Verb.RESTART} & set(verbs[:k]):
            yield page.warn(here, "`collect` after the processes were ended finds nothing", "put it first")
        if step.restart is not None and Verb.DRAIN not in verbs and not step.changes_the_run:
            useless = [kind for kind in rule.on if KIND_DEFAULTS[kind].restart_helps is RestartHelps.NO]
            useless = [kind for kind in useless if kind is not Kind.CONFIG_OR_CODE_BUG]
            if useless and rule.when is None:
                hint = 'drain, exclude_nodes, an override, or `when: incident.restart_helps != "no"`'
                yield page.warn(here, f"a plain restart rarely helps after {', '.join(useless)}", hint)


def _step(policy: Policy, step: Step, here: Path, page: _Page) -> Iterator[Problem]:
    if step.notify is not None and step.notify.to not in policy.spec.notify:
        known = nearest(step.notify.to, policy.spec.notify) if policy.spec.notify else ""
        hint = known or "without it, messages go to the log and the ledger only"
        yield page.warn(here, f"the target {step.notify.to!r} is not under spec.notify", hint)
