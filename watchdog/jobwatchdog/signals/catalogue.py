"""Catalogues of log signatures: data that says which line means what.

A catalogue is YAML (`version: 1`, `signatures: [...]`). Patterns are RE2 syntax, so that no site's
pattern can take exponential time, and are searched, not anchored, unless they anchor themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from jobwatchdog.model import CauseClass, Kind, RestartHelps, Role

_KEYS = frozenset(
    "id kind role pattern trigger unless cause_class restart_helps confidence tags summary matches rejects".split()  # noqa: SIM905
)
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Signature:
    """One kind of line: what `pattern` finds and `unless` does not. `matches` and `rejects` are examples that tests
    hold both to."""

    id: str
    pattern: str
    kind: Kind | None
    role: Role
    summary: str
    trigger: str = ""  # cheaper words that every match has too: these are searched for, `pattern` only where they are
    unless: str = ""  # a line in which this is found too means something else; empty = no such words
    cause_class: CauseClass | None = None
    restart_helps: RestartHelps | None = None
    confidence: float = 0.9
    tags: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a catalogue, where it stands."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class CatalogueError(ValueError):
    """A catalogue was refused; `problems` has every mistake found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class _Loader(yaml.CSafeLoader):
    """Keeps the line of each mapping under a key that no catalogue can have."""


_LINE = "\0line"


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = dict(loader.construct_pairs(node, deep=True))
    found[_LINE] = node.start_mark.line + 1
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_catalogue(text: str, file: str, *, check: bool = True) -> list[Signature]:
    """Read a catalogue; raise CatalogueError with every problem.

    `check` compiles each pattern with RE2 and holds it to its examples. The shell leaves it out for text
    that it has checked before.
    """
    try:
        raw = yaml.load(text, Loader=_Loader)  # noqa: S506 - derives from the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        raise CatalogueError([Problem(file, mark.line + 1 if mark else 1, f"not YAML: {what}")]) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("signatures"), list):
        raise CatalogueError([Problem(file, 1, "expected a mapping with a list under `signatures`")])
    if raw.get("version") != 1:
        raise CatalogueError([Problem(file, 1, f"version {raw.get('version')!r} is not known; this reads version 1")])
    problems: list[Problem] = []
    found = [s for entry in raw["signatures"] if (s := _signature(entry, file, problems, check)) is not None]
    if problems:
        raise CatalogueError(problems)
    return found


def _signature(entry: object, file: str, problems: list[Problem], check: bool) -> Signature | None:
    if not isinstance(entry, dict):
        problems.append(Problem(file, 1, f"expected a mapping for a signature, found {entry!r}"))
        return None
    line = int(entry.pop(_LINE))
    before = len(problems)

    def wrong(message: str) -> None:
        problems.append(Problem(file, line, f"signature {entry.get('id', '?')}: {message}"))

    for key in sorted(set(map(str, entry)) - _KEYS):
        wrong(f"unknown key `{key}`; allowed: {', '.join(sorted(_KEYS))}")
    for key in ("id", "pattern", "summary"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            wrong(f"`{key}` must be a text")
    if len(problems) > before:
        return None
    if not _ID.fullmatch(entry["id"]):
        wrong("`id` must be lower-case words joined by hyphens")
    try:
        signature = _build(entry, file, line)
    except (ValueError, TypeError) as error:
        wrong(str(error))
        return None
    if signature.kind is None and signature.role in (Role.CAUSE, Role.SYMPTOM):
        wrong(f"role {signature.role} needs a `kind`")
    if check:
        for message in check_signature(signature):
            wrong(message)
    return signature if len(problems) == before else None


def _build(entry: Mapping[str, Any], file: str, line: int) -> Signature:
    return Signature(
        id=entry["id"],
        pattern=entry["pattern"],
        kind=Kind(entry["kind"]) if entry.get("kind") is not None else None,
        role=Role(entry.get("role", "cause")),
        summary=entry["summary"],
        trigger=str(entry.get("trigger") or ""),
        unless=str(entry.get("unless") or ""),
        cause_class=CauseClass(entry["cause_class"]) if entry.get("cause_class") else None,
        restart_helps=RestartHelps(_yes_no(entry["restart_helps"])) if "restart_helps" in entry else None,
        confidence=float(entry.get("confidence", 0.9)),
        tags=tuple(entry.get("tags") or ()),
        matches=tuple(entry.get("matches") or ()),
        rejects=tuple(entry.get("rejects") or ()),
        file=file,
        line=line,
    )


def _yes_no(value: object) -> str:
    # YAML 1.1 reads a bare yes/no as a truth value.
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def check_signature(signature: Signature) -> list[str]:
    """Return what is wrong with a signature's pattern or examples."""
    wrong = [
        f"bad {key} {pattern!r}: {reason}" for key, pattern in _patterns(signature) if (reason := _refused(pattern))
    ]
    if wrong:
        return wrong
    reader = Reader(signature)
    for key, pattern in _patterns(signature):
        if pattern and reader.compile(pattern).search(""):
            return [f"{key} {pattern!r} matches an empty line"]
    wrong = [] if signature.matches else ["`matches` needs at least one real line"]
    wrong += [f"does not match its example {line!r}" for line in signature.matches if not _hits(reader, line)]
    wrong += [f"matches its counter-example {line!r}" for line in signature.rejects if _hits(reader, line)]
    if signature.trigger:
        trigger = reader.compile(signature.trigger)
        wrong += [
            f"its trigger is not in its example {line!r}" for line in signature.matches if not trigger.search(line)
        ]
    return wrong


def _patterns(signature: Signature) -> tuple[tuple[str, str], ...]:
    return (("pattern", signature.pattern), ("`trigger`", signature.trigger), ("`unless`", signature.unless))


class Reader:
    """A signature ready to read lines. RE2: no site's pattern can take exponential time."""

    __slots__ = ("_pattern", "_unless")

    def __init__(self, signature: Signature) -> None:
        self._pattern = self.compile(signature.pattern)
        self._unless = self.compile(signature.unless) if signature.unless else None

    @staticmethod
    def compile(pattern: str) -> Any:
        """Return the compiled pattern, quietly."""
        import re2

        options = re2.Options()
        options.log_errors = False
        return re2.compile(pattern, options)

    def read(self, line: str) -> Any:
        """Return the match of the pattern, None for a line that means nothing or something else."""
        match = self._pattern.search(line)
        return None if match is None or (self._unless is not None and self._unless.search(line)) else match


def _refused(pattern: str) -> str:
    import re2

    try:
        Reader.compile(pattern)
    except re2.error as error:
        return error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
    return ""


def _hits(reader: Reader, example: str) -> bool:
    return any(reader.read(line) for line in example.splitlines())


class Catalogue:
    """All signatures in force, by id."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures: tuple[Signature, ...] = tuple(signatures)
        seen: dict[str, Signature] = {}
        problems = []
        for one in self.signatures:
            if one.id in seen:
                first = seen[one.id]
                problems.append(Problem(one.file, one.line, f"id {one.id} is taken by {first.file}:{first.line}"))
            seen[one.id] = one
        if problems:
            raise CatalogueError(problems)
        self.by_id: Mapping[str, Signature] = seen

    @classmethod
    def parse(cls, texts: Iterable[tuple[str, str]], *, check: bool = True) -> Catalogue:
        """Read several catalogues, given as (file, text); raise CatalogueError with the problems of all."""
        problems: list[Problem] = []
        found: list[Signature] = []
        for file, text in texts:
            try:
                found += parse_catalogue(text, file, check=check)
            except CatalogueError as error:
                problems += error.problems
        if problems:
            raise CatalogueError(problems)
        return cls(found)
