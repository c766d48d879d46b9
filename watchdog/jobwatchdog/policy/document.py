"""Read a YAML document into pydantic types: every mistake at once, each with its place and a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from jobwatchdog.policy.conditions import ConditionError

M = TypeVar("M", bound=BaseModel)
Path = tuple[int | str, ...]

NAMES_SHOWN_MAX = 12


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
    """A document was refused; `problems` has every mistake, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file with the place of every value in it."""

    file: str
    text: str
    raw: Any

    def place(self, path: Path) -> tuple[int, int]:
        """Return line and column of the deepest part of `path` that exists."""
        line, column, _ = self._walk(path)
        return line, column

    def value(self, path: Path) -> Any:
        """Return the deepest value along `path`."""
        return self._walk(path)[2]

    def key_place(self, path: Path) -> tuple[int, int]:
        """Return the place of the key itself, not of its value."""
        parent = self.value(path[:-1])
        if isinstance(parent, CommentedMap) and path[-1] in parent:
            line, column = parent.lc.key(path[-1])
            return line + 1, column + 1
        return self.place(path)

    def _walk(self, path: Path) -> tuple[int, int, Any]:
        line, column, node = 1, 1, self.raw
        for part in path:
            if isinstance(node, CommentedMap) and part in node:
                at = node.lc.value(part)
            elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
                at = node.lc.item(part)
            else:
                continue  # pydantic's own word for a branch, such as the type of a union
            line, column, node = at[0] + 1, at[1] + 1, node[part]
        return line, column, node

    def inside(self, path: Path, line: int, column: int) -> tuple[int, int]:
        """Return where a place within a text value stands in the file, however the text is quoted or folded.

        YAML changes only the white space of such a text, so its other characters are counted.
        """
        value = str(self.value(path))
        lines = value.split("\n")
        before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1] if line <= len(lines) else ""])
        start_line, start_column = self.place(path)
        source = self.text.split("\n")
        places = _characters(source, start_line - 1, start_column - 1)
        seen = sum(not c.isspace() for c in before)
        last = (start_line, start_column)
        for index, place in enumerate(places):
            if index == seen:
                return place
            last = place
        return last


def _characters(source: list[str], row: int, start: int) -> Iterator[tuple[int, int]]:
    """Places of the visible characters of the text that begins there."""
    first = source[row][start : start + 1]
    if first in ("|", ">"):
        row, start, first = row + 1, 0, ""
    elif first in ('"', "'"):
        start += 1
    escaped = False
    for r in range(row, len(source)):
        for c in range(start if r == row else 0, len(source[r])):
            letter = source[r][c]
            if letter == "\\" and first == '"' and not escaped:
                escaped = True  # the next character is the one that counts
            elif not letter.isspace():
                escaped = False
                yield r + 1, c + 1


def read(text: str, file: str, model: type[M]) -> tuple[M | None, Document | None, list[Problem]]:
    """Return the document as `model`, its places, and what is wrong with it."""
    yaml = YAML(typ="rt")
    try:
        raw = yaml.load(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return None, None, [Problem(file, line, column, f"not YAML: {_first_line(error)}")]
    except (YAMLError, ValueError) as error:  # odd characters and impossible dates come as the latter
        return None, None, [Problem(file, 1, 1, f"not YAML: {str(error).splitlines()[0]}")]
    document = Document(file, text, raw)
    if not isinstance(raw, CommentedMap):
        allowed = ", ".join(_keys(model))
        return None, document, [Problem(file, 1, 1, f"expected a mapping with the keys {allowed}")]
    try:
        return model.model_validate(_plain(raw)), document, []
    except ValidationError as error:
        found = {problem for entry in error.errors() for problem in _problems(document, model, entry)}
        return None, document, sorted(found)


def _first_line(error: MarkedYAMLError) -> str:
    words = error.problem or error.context or "cannot be read"
    return str(words).splitlines()[0]


def _plain(node: Any) -> Any:
    if isinstance(node, CommentedMap):
        return {key if isinstance(key, str) else str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value) for value in node]
    if isinstance(node, bool | None):
        return node
    for kind in (str, int, float):
        if isinstance(node, kind):
            return kind(node)  # ruamel's own scalars know how they were written, which nobody asks here
    return node


def _problems(document: Document, model: type[BaseModel], entry: Any) -> Iterator[Problem]:
    path: Path = tuple(entry["loc"])
    cause = (entry.get("ctx") or {}).get("error")
    if isinstance(cause, ConditionError):
        for fault in cause.faults:
            line, column = document.inside(path, fault.line, fault.column)
            yield Problem(document.file, line, column, f"{dotted(path)}: {fault.message}", fault.suggestion)
    else:
        yield _problem(document, model, path, entry, cause)


def _problem(document: Document, model: type[BaseModel], path: Path, entry: Any, cause: Exception | None) -> Problem:
    file, kind, where = document.file, entry["type"], dotted(path)
    line, column = document.place(path)
    value = document.value(path)
    if kind == "extra_forbidden":
        line, column = document.key_place(path)
        allowed = _allowed(model, path)
        return Problem(file, line, column, f"{_parent(path)}unknown key `{path[-1]}`", nearest(str(path[-1]), allowed))
    if kind == "missing":
        return Problem(file, line, column, f"{_parent(path)}`{path[-1]}` is missing")
    if kind in ("enum", "literal_error"):
        expected = [word.strip("' ") for word in entry["ctx"]["expected"].replace(" or ", ",").split(",")]
        shown = repr(value) if not isinstance(value, dict | list) else "a list or mapping"
        return Problem(file, line, column, f"{where}: {shown} is not allowed", nearest(str(value), expected))
    message = str(cause) if cause is not None else entry["msg"]
    found = "" if isinstance(value, dict | list) or repr(value) in message else f", found {value!r}"
    return Problem(file, line, column, f"{where}: {message[:1].lower()}{message[1:]}{found}")


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return a suggestion: the nearest good word, else all that are allowed."""
    words = list(allowed)
    near = difflib.get_close_matches(word, words, 1)
    if near:
        return f"did you mean `{near[0]}`?"
    more = f", and {len(words) - NAMES_SHOWN_MAX} more" if len(words) > NAMES_SHOWN_MAX else ""
    return f"allowed: {', '.join(words[:NAMES_SHOWN_MAX])}{more}" if words else ""


def dotted(path: Path) -> str:
    """Write a path as people do: `spec.rules[0].on`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _parent(path: Path) -> str:
    return f"{dotted(path[:-1])}: " if len(path) > 1 else ""


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _allowed(model: type[BaseModel], path: Path) -> list[str]:
    """Return the keys that the mapping around `path` may have, from the types themselves."""
    node = model
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        field = next((f for n, f in node.model_fields.items() if part in (n, f.alias)), None)
        if field is None:
            continue  # the name of a user's own, such as a notification target
        found = _models(field.annotation)
        if not found:
            return []
        node = found[0]
    return sorted(_keys(node))


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
