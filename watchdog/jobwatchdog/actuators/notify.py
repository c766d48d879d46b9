"""notify and ask: a webhook (JSON with a Slack-compatible `text`) or a command that reads the JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

import aiohttp
import tenacity

from jobwatchdog.actuators import process
from jobwatchdog.actuators.base import ActFailedError, ActionContext, BaseActuator, Done, words
from jobwatchdog.actuators.site_command import command_of
from jobwatchdog.model import Action, Json, Verb

POST_TIMEOUT_S = 5.0
Target = str | Sequence[str]
TRIES_MAX = 4
WAIT_S_MAX = 4.0
COMMAND_TIMEOUT_S = 30.0


class RetryLaterError(Exception):
    """The other side may take it later: no connection, 429, or its own fault (5xx)."""


class NotifyActuator(BaseActuator):
    """Tells people; a receiver sees the action's id and may drop what it has seen before."""

    verb = Verb.NOTIFY
    touches = "nothing; sends a message"

    def describe(self, action: Action, ctx: ActionContext) -> str:
        """To whom."""
        return f"tell {', '.join(words(action.args, 'to')) or 'nobody in particular'}: {self.text(action, ctx)}"

    def text(self, action: Action, ctx: ActionContext) -> str:
        """What a person reads on a telephone."""
        own = action.args.get("message") or action.args.get("text")
        severity = action.args.get("severity")
        lead = f"[{severity}] " if isinstance(severity, str) else ""
        if isinstance(own, str):
            return lead + own
        name = ctx.job.name or ctx.job.id
        if ctx.incident is None:
            return f"{lead}{name}: see the watchdog"
        about = ctx.incident.suspects
        who = [*about.nodes, *(f"rank {rank}" for rank in about.ranks), *about.gpus, *about.links]
        suspects = f", suspects: {', '.join(who[:8])}" if who else ""
        summary = f": {ctx.incident.summary}" if ctx.incident.summary else ""
        return f"{lead}{name}: {ctx.incident.kind.value}{summary}{suspects}"

    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """Every receiver is tried; one that cannot be reached fails the action after the others were told."""
        body: dict[str, Json] = {
            "text": self.text(action, ctx),
            "action": action.id,
            "verb": self.verb.value,
            "severity": action.args.get("severity"),
            **ctx.incident_facts(),
        }
        if command := command_of(action):
            await _command(command, body)
            return Done(f"told by {command[0]}", {"delivered": ["command"]})
        delivered: list[Json] = []
        problems: list[str] = []
        nowhere: list[str] = []
        for name in words(action.args, "to") or ["default"]:
            target = _target(name, action, ctx.endpoints)
            if target is None:
                nowhere.append(name)
                continue
            try:
                await send(target, body)
                delivered.append(name)
            except ActFailedError as bad:
                problems.append(f"{name}: {bad}")
        if problems:
            raise ActFailedError("; ".join(problems), delivered=delivered)
        aside = f"no address is configured for {', '.join(nowhere)}: told in the log only" if nowhere else ""
        told = f"told {', '.join(map(str, delivered))}" if delivered else ""
        return Done("; ".join(filter(None, (told, aside))), {"delivered": delivered, "text": body["text"]})


class AskActuator(NotifyActuator):
    """Asks for approval; the answer arrives as an event of its own."""

    verb = Verb.ASK


def _target(name: str, action: Action, endpoints: Mapping[str, Target]) -> Target | None:
    url = action.args.get("url") or action.args.get("webhook")
    if isinstance(url, str):
        return url
    return name if name.startswith(("http://", "https://")) else endpoints.get(name)


async def send(target: Target, body: Mapping[str, Json]) -> None:
    """To a URL, or to a command of the site's configuration (a line is split as a shell would, run without one)."""
    if not isinstance(target, str):
        await _command(list(target), body)
    elif target.startswith(("http://", "https://")):
        await _post(target, body)
    else:
        await _command(shlex.split(target), body)


async def _post(url: str, body: Mapping[str, Json]) -> None:
    """Retried for a bounded time; a plain refusal (4xx) is not."""
    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(TRIES_MAX),
        wait=tenacity.wait_exponential(multiplier=0.2, max=WAIT_S_MAX),
        retry=tenacity.retry_if_exception_type(RetryLaterError),
        reraise=True,
    )
    headers = {"Idempotency-Key": str(body.get("action", ""))}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=POST_TIMEOUT_S), trust_env=True) as session:
        try:
            async for attempt in retrying:
                with attempt:
                    await _post_once(session, url, body, headers)
        except RetryLaterError as bad:
            raise ActFailedError(f"{bad} ({TRIES_MAX} tries)") from None


async def _post_once(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Json], headers: Mapping[str, str]
) -> None:
    try:
        async with session.post(url, json=dict(body), headers=headers) as answer:
            if answer.status == 429 or answer.status >= 500:
                raise RetryLaterError(f"the webhook answered {answer.status}")
            if answer.status >= 400:
                raise ActFailedError(f"the webhook refused it: {answer.status} {(await answer.text())[:200]}")
    except aiohttp.InvalidURL as bad:
        raise ActFailedError(f"not a usable URL: {bad}") from None
    except (aiohttp.ClientError, TimeoutError) as bad:
        raise RetryLaterError(f"the webhook cannot be reached: {bad or type(bad).__name__}") from None


async def _command(argv: list[str], body: Mapping[str, Json]) -> None:
    try:
        ended = await process.run(argv, timeout_s=COMMAND_TIMEOUT_S, stdin=json.dumps(body).encode())
    except OSError as bad:
        raise ActFailedError(f"{argv[0]} cannot be run: {bad.strerror or bad}") from None
    if not ended.well:
        how = f"exit code {ended.code}" if ended.code is not None else f"no end within {COMMAND_TIMEOUT_S:g} s"
        raise ActFailedError(f"{argv[0]}: {how}: {ended.output[-500:].strip()}")
