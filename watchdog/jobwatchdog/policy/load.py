"""Read a policy file: every mistake at once, each with file, line, column and a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from jobwatchdog.model import DESTRUCTIVE, Kind, Mode, Verb
from jobwatchdog.policy.conditions import ConditionError
from jobwatchdog.policy.model import Policy


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake: where it stands (from 1), what is wrong, what to write instead."""

    file: str
    line: int
    column: int
    message: str
    suggestion: str = ""
    warning: bool = False

    def __str__(self) -> str:
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{self.file}:{self.line}:{self.column}: {'warning: ' if self.warning else ''}{self.message}{hint}"


class PolicyErrors(ValueError):  # noqa: N818 - it holds several
    """A policy was refused; `problems` has every mistake, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


Path = tuple[int | str, ...]


def load_policy(text: str, file: str) -> Policy:
    """Return the policy; raise PolicyErrors."""
    policy, problems = check_policy(text, file)
    errors = [problem for problem in problems if not problem.warning]
    if policy is None or errors:
        raise PolicyErrors(errors)
    return policy


def check_policy(text: str, file: str) -> tuple[Policy | None, list[Problem]]:
    """Return the policy, if it can be read, and all problems, warnings included."""
    try:
        raw = YAML(typ="rt").load(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return None, [Problem(file, line, column, f"not YAML: {error.problem}")]
    except YAMLError as error:
        return None, [Problem(file, 1, 1, f"not YAML: {error}")]
    if not isinstance(raw, CommentedMap):
        return None, [Problem(file, 1, 1, "expected a mapping with apiVersion, kind, metadata, spec")]
    try:
        policy = Policy.model_validate(_plain(raw))
    except ValidationError as error:
        return None, sorted({_problem(raw, file, entry) for entry in error.errors()})
    policy._file = file
    return policy, _lints(policy, raw, file)


def _plain(node: Any) -> Any:
    if isinstance(node, CommentedMap):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value) for value in node]
    return node


def _position(raw: Any, path: Path) -> tuple[int, int, Any]:
    """Return line, column and value of the deepest part of `path` that exists."""
    line, column, node = 1, 1, raw
    for part in path:
        if isinstance(node, CommentedMap) and part in node:
            at = node.lc.value(part)
            node = node[part]
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            at = node.lc.item(part)
            node = node[part]
        else:
            continue  # pydantic's own word for a branch (a tag, `function-before`)
        line, column = at[0] + 1, at[1] + 1
    return line, column, node


def _key_position(raw: Any, path: Path) -> tuple[int, int]:
    _, _, parent = _position(raw, path[:-1])
    if isinstance(parent, CommentedMap) and path[-1] in parent:
        line, column = parent.lc.key(path[-1])
        return line + 1, column + 1
    line, column, _ = _position(raw, path)
    return line, column


def _problem(raw: Any, file: str, entry: Any) -> Problem:
    path: Path = tuple(entry["loc"])
    where = ".".join(str(part) for part in path)
    kind = entry["type"]
    line, column, value = _position(raw, path)
    if kind == "extra_forbidden":
        line, column = _key_position(raw, path)
        allowed = _allowed(path)
        near = difflib.get_close_matches(str(path[-1]), allowed, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"allowed: {', '.join(allowed)}"
        return Problem(file, line, column, f"unknown key `{path[-1]}`", hint if allowed else "")
    if kind == "missing":
        return Problem(file, line, column, f"`{path[-1]}` is missing in {where.rpartition('.')[0] or 'the file'}")
    if kind in ("enum", "literal_error"):
        expected = [word.strip("' ") for word in entry["ctx"]["expected"].replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(str(value), expected, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"allowed: {', '.join(expected)}"
        return Problem(file, line, column, f"{where}: {value!r} is not allowed", hint)
    cause = (entry.get("ctx") or {}).get("error")
    if isinstance(cause, ConditionError):
        return Problem(file, line + cause.line - 1, column + cause.column - 1, f"{where}: {cause}")
    message = str(cause) if cause is not None else entry["msg"]
    shown = "" if isinstance(value, dict | list) or repr(value) in message else f", found {value!r}"
    return Problem(file, line, column, f"{where}: {message[0].lower()}{message[1:]}{shown}")


def _allowed(path: Path) -> list[str]:
    """Return the keys that the mapping around `path` may have, from the types themselves."""
    from pydantic import BaseModel

    node: Any = Policy
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        field = next((f for n, f in node.model_fields.items() if part in (n, f.alias)), None)
        if field is None:
            return []
        found = _models(field.annotation)
        if not found:
            return []
        node = found[0]
    if not issubclass(node, BaseModel):
        return []
    return sorted(field.alias or name for name, field in node.model_fields.items())


def _models(annotation: Any) -> list[Any]:
    from typing import get_args

    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


# ---- what is allowed and yet wrong ------------------------------------------------------------------


def _lints(policy: Policy, raw: Any, file: str) -> list[Problem]:
    found: list[Problem] = []
    names: dict[str, int] = {}
    for i, rule in enumerate(policy.spec.rules):
        at: Path = ("spec", "rules", i)

        def say(path: Path, message: str, hint: str = "", *, warning: bool = True, at: Path = at) -> None:
            line, column, _ = _position(raw, at + path)
            found.append(Problem(file, line, column, message, hint, warning))

        if rule.name in names:
            say(("name",), f"rule name {rule.name!r} is taken by rule {names[rule.name] + 1}", warning=False)
        names.setdefault(rule.name, i)
        restarts = any(step.restart is not None for rung in rule.ladder for step in rung.do)
        if Kind.CONFIG_OR_CODE_BUG in rule.on and restarts:
            hint = "the same bug would only burn the same GPU hours again; use notify"
            say(("on",), "config_or_code_bug is never restarted", hint, warning=False)
        for j, rung in enumerate(rule.ladder):
            _rung_lints(policy, rule.verify is not None, rung, ("ladder", j), say)
    if policy.spec.mode is Mode.OBSERVE and "mode" not in (raw.get("spec") or {}):
        line, column = _key_position(raw, ("spec",))
        hint = "write `mode: enforce` when its replays look right"
        found.append(Problem(file, line, column, "no mode given: this policy only observes", hint, warning=True))
    return found


def _rung_lints(policy: Policy, rule_verifies: bool, rung: Any, path: Path, say: Any) -> None:
    for k, step in enumerate(rung.do):
        here = (*path, "do", k)
        if step.notify is not None and step.notify.to not in policy.spec.notify:
            near = difflib.get_close_matches(step.notify.to, policy.spec.notify, 1)
            hint = f"did you mean {near[0]}?" if near else "without it, messages go to the log and the ledger only"
            say(here, f"notify target {step.notify.to!r} is not under spec.notify", hint)
        if step.verb is Verb.RESTART and not (rule_verifies or rung.verify):
            say(here, "a restart without `verify`", "default: 1 new step within 15m")
        if step.verb in DESTRUCTIVE and step.verb is not Verb.EXEC and k and rung.do[k - 1].verb is Verb.STOP:
            say(here, f"`{step.verb}` after `stop` has nothing to act on")
