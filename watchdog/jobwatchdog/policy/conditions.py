"""Conditions in CEL, type-checked when the policy is loaded; a missing measurement makes them unknown, not false."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

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
    "job.id": (_T.STRING, "the job's id"),
    "job.name": (_T.STRING, "the job's name"),
    "job.user": (_T.STRING, "its owner"),
    "job.launcher": (_T.STRING, "local, pid, log, slurm or ray"),
    "job.attempt": (_T.INT, "from 0"),
    "job.world_size": (_T.INT, "ranks, where known"),
    "job.labels": (_T.Map(_T.STRING, _T.STRING), "the job's labels"),
}

_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_WORD = re.compile(r"undeclared reference to '([^']+)'")


class ConditionError(ValueError):
    """An expression was refused; `column` counts from 1 within it."""

    def __init__(self, message: str, line: int, column: int) -> None:
        self.line, self.column = line, column
        super().__init__(message)


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
            raise _refused(text, str(error)) from None
        kind = self._compiled.return_type().name()
        if kind != "BOOL":
            raise ConditionError(f"a condition must be true or false, this is {kind.lower()}: {text}", 1, 1)
        self.names = tuple(name for name in VARIABLES if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", text))

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
                raise ValueError(f"a condition is a text, found {value!r}")
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


def _refused(text: str, error: str) -> ConditionError:
    match = _ERROR.search(error)
    if not match:
        return ConditionError(f"bad condition {text!r}: {error}", 1, 1)
    message = match[3].removesuffix(" (in container '')")
    if word := _WORD.search(message):
        near = difflib.get_close_matches(word[1], VARIABLES, 1)
        message = f"unknown name {word[1]!r}" + (f"; did you mean {near[0]}?" if near else _known(word[1]))
    elif "(double, int)" in message or "(int, double)" in message:
        message += "; write a decimal point: 300.0, not 300, beside a fraction"
    return ConditionError(message, int(match[1]), int(match[2]) + 0)


def _known(word: str) -> str:
    return f"; known: {', '.join(sorted(VARIABLES))}" if "." in word else "; names begin with incident. or job."
