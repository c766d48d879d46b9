"""What every actuator is: a precondition read fresh, one act, one receipt, and a way to look whether it happened."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jobwatchdog.actuators.local.control import JobControl
from jobwatchdog.model import Action, Incident, Job, Json, Outcome, Receipt, Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionContext:
    """What the shell knows of the job at the moment of acting."""

    job: Job
    folder: Path  # the job's own folder in the state directory: bundles and notes go here
    incident: Incident | None = None
    control: JobControl | None = None  # None: the job can only be watched
    checkpoint_paths: tuple[Path, ...] = ()  # folders given by the user, and paths that the job printed
    rank_pids: Mapping[int, int] = field(default_factory=dict)
    log_files: tuple[Path, ...] = ()
    nccl_version: tuple[int, ...] | None = None  # as the job's log states it
    torch_version: tuple[int, ...] | None = None
    endpoints: Mapping[str, str | Sequence[str]] = field(default_factory=dict)  # `notify: {to: NAME}` → URL or argv

    def incident_facts(self) -> dict[str, Json]:
        """The incident in plain values, for messages and site commands."""
        found = self.incident
        facts: dict[str, Json] = {"job": self.job.id, "job_name": self.job.name, "attempt": self.job.attempt}
        if found is None:
            return facts
        return facts | {
            "incident": found.id,
            "kind": found.kind.value,
            "cause_class": found.cause_class.value,
            "confidence": found.confidence,
            "summary": found.summary,
            "nodes": list(found.suspects.nodes),
            "ranks": list(found.suspects.ranks),
            "gpus": list(found.suspects.gpus),
            "links": list(found.suspects.links),
            "evidence": [{"text": e.text, "file": e.file, "line": e.line} for e in found.evidence[:10]],
        }


class Actuator(Protocol):
    """One verb. `touches` declares what it may change in the world."""

    verb: Verb
    touches: str

    async def precondition(self, action: Action, ctx: ActionContext) -> str | None:
        """Why this must not be done now, None when it may."""

    async def run(self, action: Action, ctx: ActionContext, *, dry_run: bool = False) -> Receipt:
        """Does it once, however often it is called with this action; with `dry_run` only says what it would do."""

    async def resolve(self, action: Action, ctx: ActionContext) -> Receipt:
        """For an intent without a receipt: looks. UNKNOWN with `repeatable: true` = nothing happened, run it."""


class ActFailedError(RuntimeError):
    """The act could not be done; the text becomes the receipt's detail, `data` its particulars."""

    def __init__(self, text: str, **data: Json) -> None:
        super().__init__(text)
        self.data = data


@dataclass(frozen=True, slots=True)
class Done:
    """What an act reports on success."""

    detail: str
    data: Mapping[str, Json] = field(default_factory=dict)


class BaseActuator(ABC):
    """The frame around an act: late or refused is SKIPPED, an error is FAILED in words, never a traceback."""

    verb: Verb
    touches: str = "nothing"

    async def precondition(self, action: Action, ctx: ActionContext) -> str | None:
        """Nothing to ask for by default."""
        return None

    @abstractmethod
    def describe(self, action: Action, ctx: ActionContext) -> str:
        """One sentence in the conditional: what `run` would do."""

    @abstractmethod
    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """Does it, or raises ActFailedError."""

    async def run(self, action: Action, ctx: ActionContext, *, dry_run: bool = False) -> Receipt:
        """See the protocol."""
        begun = time.time()
        try:
            if (refusal := await self._refusal(action, ctx, begun)) is not None:
                return _receipt(action, Outcome.SKIPPED, refusal, begun)
            if dry_run:
                return _receipt(
                    action, Outcome.SKIPPED, "dry run: would " + self.describe(action, ctx), begun, dry_run=True
                )
            done = await self.act(action, ctx)
        except ActFailedError as bad:
            return _receipt(action, Outcome.FAILED, str(bad), begun, **bad.data)
        except Exception as bad:  # our fault must reach the ledger as words, and never the job
            return _receipt(action, Outcome.FAILED, f"{type(bad).__name__}: {bad}", begun)
        return _receipt(action, Outcome.DONE, done.detail, begun, **done.data)

    async def _refusal(self, action: Action, ctx: ActionContext, now_s: float) -> str | None:
        if action.not_after_s is not None and now_s > action.not_after_s:
            return f"too late by {now_s - action.not_after_s:.0f} s: the plan has gone stale"
        return await self.precondition(action, ctx)

    async def resolve(self, action: Action, ctx: ActionContext) -> Receipt:
        """Harmless to repeat unless a subclass knows better."""
        return unknown(action, f"cannot tell whether {self.verb.value} was done", repeatable=True)


class OnceActuator(BaseActuator):
    """For acts that the world shows no trace of: a note is made before them, and never a second time."""

    async def run(self, action: Action, ctx: ActionContext, *, dry_run: bool = False) -> Receipt:
        """As the base; done before is told from the note."""
        if not dry_run and (earlier := self._note(action, ctx)).exists():
            return _receipt(action, Outcome.SKIPPED, f"begun before, see {earlier}: not repeated", time.time())
        return await super().run(action, ctx, dry_run=dry_run)

    async def resolve(self, action: Action, ctx: ActionContext) -> Receipt:
        """Begun and its end not seen: a person must look. Not begun: may be run."""
        note = self._note(action, ctx)
        if not note.exists():
            return unknown(action, f"{self.verb.value} was not begun", repeatable=True)
        return unknown(action, f"{self.verb.value} was begun, see {note}; its end was not seen", repeatable=False)

    def begin(self, action: Action, ctx: ActionContext) -> None:
        """Called by `act` just before the irrevocable step; the note is durable when it returns."""
        note = self._note(action, ctx)
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            raise ActFailedError(f"begun by another at the same time, see {note}: not repeated") from None
        with os.fdopen(fd, "w") as out:
            out.write(f"{self.verb.value} {action.key} {time.time():.3f}\n")
            out.flush()
            os.fsync(out.fileno())

    @staticmethod
    def _note(action: Action, ctx: ActionContext) -> Path:
        return ctx.folder / "acts" / re.sub(r"[^A-Za-z0-9._=-]", "_", action.id)


def unknown(action: Action, detail: str, *, repeatable: bool) -> Receipt:
    """What `resolve` says when the act has not been seen."""
    return _receipt(action, Outcome.UNKNOWN, detail, time.time(), repeatable=repeatable)


def done_before(action: Action, detail: str, **data: Json) -> Receipt:
    """What `resolve` says when it finds the act done."""
    return _receipt(action, Outcome.DONE, detail, time.time(), **data)


def _receipt(action: Action, outcome: Outcome, detail: str, begun: float, **data: Json) -> Receipt:
    return Receipt(
        action=action.id, outcome=outcome, detail=detail, started_s=begun, finished_s=time.time(), data=dict(data)
    )


def number(args: Mapping[str, Json], name: str, default: float) -> float:
    """A numeric argument; durations arrive in seconds."""
    value = args.get(name, default)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def words(args: Mapping[str, Json], name: str) -> list[str]:
    """A list of strings; one string counts as a list of one."""
    value = args.get(name)
    if isinstance(value, str):
        return [value]
    return [str(item) for item in value] if isinstance(value, list) else []
