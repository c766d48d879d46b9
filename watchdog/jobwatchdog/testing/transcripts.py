"""Whole incidents as text: what happened, and what the engine decided about it.

A transcript is a file of blocks after a policy:

    # a rank dies; the job is restarted once
    policy
    apiVersion: jobwatchdog/v1
    ...
    ====
    12.0 match rank_crash rank=1
    ----
    12.000 incident ...

Above `----` is input, one fact a line, below it what the engine decided, the ticks it asked for included.
`rewrite` puts in what is decided now, for a person to review as a diff. The facts:

    T job [attempt=N] [label=value...]     T step N [loss=X]        T steps FIRST..LAST every S
    T alive UNTIL every S               (both ranks are seen at work)
    T match KIND [rank=N] [role=symptom] [words]                    T state running|failed|cancelled|unknown|succeeded
    T done|failed|skipped|unknown [new_attempt=N] [step=N] [words]  T approve|refuse BY
    T close-breaker POLICY                  T end                   T wait
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from jobwatchdog.engine import Engine
from jobwatchdog.model import BreakerClosed, JobPhase, Json, Kind, LogEnded, Outcome, Role
from jobwatchdog.testing.scene import Scene
from jobwatchdog.testing.words import line_of

_OUTCOMES = {
    "done": Outcome.DONE, "failed": Outcome.FAILED, "skipped": Outcome.SKIPPED, "unknown": Outcome.UNKNOWN,
}  # fmt: skip


_ID = re.compile(r"\b[ip]-[0-9a-f]{10,12}(?:-\d+)?\b")


class TranscriptError(ValueError):
    """A transcript that cannot be read; names the line."""


@dataclass(frozen=True, slots=True)
class Block:
    """Facts, and what was decided about them."""

    comments: tuple[str, ...]
    facts: tuple[str, ...]
    decided: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A file, taken apart."""

    head: str  # comments above the policy
    policy: str
    blocks: tuple[Block, ...]


def parse(text: str) -> Transcript:
    """Take a file apart."""
    head, found, rest = text.partition("\npolicy\n")
    policy, found_end, rest = rest.partition("\n====\n")
    if not found or not found_end:
        raise TranscriptError("a transcript begins with `policy`, its text, and `====`")
    blocks = [_block(part) for part in rest.strip("\n").split("\n\n")]
    return Transcript(head, policy, tuple(blocks))


def _block(text: str) -> Block:
    facts, found, decided = (text + "\n").partition("----\n")
    if not found:
        raise TranscriptError(f"no `----` after: {text.splitlines()[-1]}")
    lines = facts.splitlines()
    comments = tuple(line for line in lines if line.startswith("#"))
    return Block(comments, tuple(line for line in lines if not line.startswith("#")), tuple(decided.splitlines()))


def rewritten(text: str, engine: Callable[[str], Engine]) -> str:
    """The file as it would be if what the engine decides now were right; equal to `text` if it is."""
    transcript = parse(text)
    scene = Scene(engine(transcript.policy))
    names: dict[str, str] = {}
    parts = [f"{transcript.head}\npolicy\n{transcript.policy}\n===="]
    for block in transcript.blocks:
        before = len(scene.decisions)
        for fact in block.facts:
            _play(scene, fact)
        decided = [_short(line_of(decision), names) for decision in scene.decisions[before:]]
        parts.append("\n".join([*block.comments, *block.facts, "----", *decided]))
    return parts[0] + "\n" + "\n\n".join(parts[1:]) + "\n"


def _short(line: str, names: dict[str, str]) -> str:
    """Ids are made from content and say nothing to a reader: count them instead."""

    def name(found: re.Match[str]) -> str:
        letter = found[0][0]
        count = sum(one[0] == letter for one in names) + 1
        return names.setdefault(found[0], f"{letter}{count}")

    return _ID.sub(name, line)


def _play(scene: Scene, fact: str) -> None:
    try:
        time, verb, *words = shlex.split(fact)
        _act(scene, float(time), verb, words)
    except (ValueError, KeyError, IndexError) as error:
        raise TranscriptError(f"cannot play {fact!r}: {error}") from error


def _act(scene: Scene, now_s: float, verb: str, words: list[str]) -> None:
    named = {key: value for key, found, value in (word.partition("=") for word in words) if found}
    plain = [word for word in words if "=" not in word]
    match verb:
        case "job":
            scene.registered(now_s, int(named.pop("attempt", "0")), named)
        case "step":
            scene.step(now_s, int(plain[0]), float(named.get("loss", "2.0")))
        case "steps":
            first, _, last = plain[0].partition("..")
            scene.steps(now_s, int(first), int(last), float(plain[2]) if len(plain) > 2 else 1.0)
        case "alive":
            until_s, every_s = float(plain[0]), float(plain[2])
            for i in range(int((until_s - now_s) / every_s) + 1):
                scene.alive(now_s + i * every_s)
        case "match":
            rank = int(named["rank"]) if "rank" in named else None
            role = Role(named.get("role", "cause"))
            scene.match(now_s, Kind(plain[0]), rank=rank, role=role, text=" ".join(plain[1:]))
        case "state":
            scene.state(now_s, JobPhase(plain[0]), int(named["exit_code"]) if "exit_code" in named else None)
        case "done" | "failed" | "skipped" | "unknown":
            data: dict[str, Json] = {("checkpoint_step" if key == "step" else key): int(v) for key, v in named.items()}
            scene.receipt(now_s, _OUTCOMES[verb], " ".join(plain), **data)
        case "approve" | "refuse":
            scene.approval(now_s, verb == "approve", plain[0])
        case "close-breaker":
            scene.at(now_s, BreakerClosed(now_s=now_s, policy=plain[0], by="somebody"))
        case "end":
            scene.at(now_s, LogEnded(now_s=now_s, job=scene.job))
        case "wait":
            scene.until(now_s)
        case _:
            raise TranscriptError(f"no fact is called {verb!r}")
