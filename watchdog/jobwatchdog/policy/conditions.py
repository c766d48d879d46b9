"""Conditions in CEL, type-checked when the policy is loaded; a missing measurement makes them unknown, not false."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from jobwatchdog.model import CauseClass, Kind, RestartHelps

_T = cel.Type

VARIABLES: dict[str, tuple[Any, str]] = {
    "incident.kind": (_T.STRING, "kind of the cause"),
    "incident.cause_class": (_T.STRING, "hardware, infrastructure, application or unknown"),
    "incident.restart_helps": (_T.STRING, "yes, no or maybe"),
    "incident.confidence": (_T.DOUBLE, "0 to 1"),
    "incident.count": (_T.INT, "findings folded in"),
    "incident.attempt": (_T.INT, "attempt in which it happened, from 0"),
    "incident.symptoms": (_T.List(_T.STRING), "kinds that the cause explains"),
    "incident.ranks": (_T.List(_T.INT), "suspect ranks"),
    "incident.nodes": (_T.List(_T.STRING), "suspect nodes"),
    "incident.gpus": (_T.List(_T.STRING), "suspect GPUs"),
    "incident.links": (_T.List(_T.STRING), "suspect links"),
    "incident.duration_s": (_T.DOUBLE, "seconds since the fault's onset"),
    "incident.xid": (_T.INT, "XID, where there is one"),
    "incident.onset_step": (_T.INT, "first step of the fault, where known"),
    "incident.clock_ratio": (_T.DOUBLE, "SM clock over its maximum, where measured"),
    "incident.temp_c": (_T.DOUBLE, "temperature, where measured"),
    "incident.silence_s": (_T.DOUBLE, "seconds without a sign of progress, where measured"),
    "incident.loss": (_T.DOUBLE, "loss at the fault, where known"),
    "incident.measures": (_T.Map(_T.STRING, _T.DOUBLE), "every number that the detector measured, by name"),
    "incident.summary": (_T.STRING, "the incident in a sentence"),
    "job.id": (_T.STRING, "the job's id"),
    "job.name": (_T.STRING, "the job's name"),
    "job.user": (_T.STRING, "its owner"),
    "job.launcher": (_T.STRING, "local, pid, log, slurm or ray"),
    "job.attempt": (_T.INT, "from 0"),
    "job.world_size": (_T.INT, "ranks, where known"),
    "job.labels": (_T.Map(_T.STRING, _T.STRING), "the job's labels"),
}

_ERROR = re.compile(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(\d+):(\d+): (.*)$", re.MULTILINE)
_WORD = re.compile(r"undeclared reference to '([^']+)'")
_OVERLOAD = re.compile(r"found no matching overload for '([^']+)' applied to '\((.*)\)'")
_EQUALS = re.compile(r"""(incident\.\w+)\s*[!=]=\s*(["'])(.*?)\2""")
_WORDS = {
    "incident.kind": tuple(kind.value for kind in Kind),
    "incident.cause_class": tuple(cause.value for cause in CauseClass),
    "incident.restart_helps": tuple(helps.value for helps in RestartHelps),
}
_TYPE_NAMES = {"int": "a whole number", "double": "a fraction", "string": "a text", "bool": "true or false"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an expression; line and column count from 1 within it."""

    line: int
    column: int
    message: str
    suggestion: str = ""


class ConditionError(ValueError):
    """An expression was refused, for all the reasons in `faults`."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.message for fault in faults))


@lru_cache(maxsize=1)
def _environment() -> Any:
    return cel.NewEnv(variables={name: kind for name, (kind, _) in VARIABLES.items()})


@dataclass(frozen=True, slots=True)
class Verdict:
    """True, False, or None = unknown because a value is missing; `because` says with which values."""

    value: bool | None
    because: str


class Condition:
    """A checked expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._compiled = _environment().compile(text)
        except RuntimeError as error:
            raise ConditionError(_refused(text, str(error))) from None
        kind = self._compiled.return_type().name()
        if kind != "BOOL":
            said = _TYPE_NAMES.get(kind.lower(), kind.lower())
            raise ConditionError([Fault(1, 1, f"a condition must be true or false, this is {said}")])
        if faults := _unknown_words(text):
            raise ConditionError(faults)
        self.names = tuple(name for name in VARIABLES if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", text))

    @property
    def constant(self) -> bool | None:
        """Its value where that does not depend on any fact."""
        return self.ask({}).value

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def ask(self, facts: Mapping[str, Any]) -> Verdict:
        """Evaluate over facts; those that are None are missing."""
        known = {name: value for name, value in facts.items() if value is not None}
        shown = ", ".join(f"{name}={_show(known.get(name))}" for name in self.names)
        result = self._compiled.eval(data=known)
        value = result.value()
        if isinstance(value, bool):
            return Verdict(value, f"{self.text}  [{shown}]")
        missing = [name for name in self.names if name not in known]
        why = f"missing: {', '.join(missing)}" if missing else str(value)
        return Verdict(None, f"{self.text}  [{shown}] cannot be told ({why})")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic build one from a text."""

        def build(value: object) -> Condition:
            if isinstance(value, Condition):
                return value
            if not isinstance(value, str):
                raise ValueError(f"a condition is a text in CEL, found {value!r}")
            return cls(value)

        return core_schema.no_info_plain_validator_function(
            build, serialization=core_schema.plain_serializer_function_ser_schema(lambda c: c.text)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """To an editor it is a text."""
        return {"type": "string", "description": "CEL expression over incident.* and job.*"}


def _show(value: object) -> str:
    if value is None:
        return "?"
    return f"{value:g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)


def _refused(text: str, error: str) -> list[Fault]:
    found = [_fault(text, int(line), int(column), words) for line, column, words in _ERROR.findall(error)]
    # One slip of the pen gives several complaints of the parser; the first one points at it.
    syntax = next((fault for fault in found if fault.message.startswith("syntax")), None)
    return [syntax] if syntax else found or [Fault(1, 1, f"bad condition: {error.splitlines()[0]}")]


def _fault(text: str, line: int, column: int, words: str) -> Fault:
    message = words.removesuffix(" (in container '')")
    if word := _WORD.search(message):
        row = text.split("\n")[line - 1]
        start = row.rfind(word[1], 0, column - 1 + len(word[1]))
        column = start + 1 if start >= 0 else column
        if row[column - 1 + len(word[1]) :].lstrip().startswith("("):
            return Fault(line, column, f"unknown function `{word[1]}`")
        return Fault(line, column, f"unknown name `{word[1]}`", _near(word[1]))
    if overload := _OVERLOAD.search(message):
        return _no_overload(line, column, overload[1], overload[2])
    if message.startswith("Syntax error: "):
        rest = message.removeprefix("Syntax error: ").partition(" expecting ")[0]
        row = text.split("\n")[line - 1]
        single = row[column - 1 : column] == "=" and "=" not in row[column : column + 1]
        return Fault(line, column, f"syntax: {rest}", "compare with `==`" if single else "")
    return Fault(line, column, message)


def _no_overload(line: int, column: int, function: str, types: str) -> Fault:
    kinds = [part.strip() for part in types.split(",")]
    names = [_TYPE_NAMES.get(kind, kind) for kind in kinds]
    operator = function.strip("_@")
    if len(kinds) != 2 or function == operator:
        return Fault(line, column, f"`{operator}` does not take {' and '.join(names)}")
    hint = "write a decimal point: 300.0, not 300" if set(kinds) == {"int", "double"} else ""
    if set(kinds) == {"bool"} and operator in ("&&", "||"):
        hint = ""
    return Fault(line, column, f"`{operator}` between {names[0]} and {names[1]}", hint)


def _near(word: str) -> str:
    near = difflib.get_close_matches(word, VARIABLES, 1)
    if near:
        return f"did you mean `{near[0]}`?"
    head = word.partition(".")[0]
    known = sorted(name for name in VARIABLES if name.startswith(f"{head}."))
    return f"known: {', '.join(known)}" if known else "names begin with `incident.` or `job.`"


def _unknown_words(text: str) -> list[Fault]:
    """A text that is compared with a word of ours and is none of them would never be equal."""
    found = []
    for match in _EQUALS.finditer(text):
        allowed = _WORDS.get(match[1])
        if allowed is not None and match[3] not in allowed:
            near = difflib.get_close_matches(match[3], allowed, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"allowed: {', '.join(allowed[:6])}"
            before = text[: match.start(3)]
            line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
            found.append(Fault(line, column, f"`{match[1]}` is never {match[3]!r}", hint))
    return found
