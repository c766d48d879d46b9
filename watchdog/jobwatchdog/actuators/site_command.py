"""exec: a site's own command, as an argv list, with the incident on its stdin and in its environment."""

from __future__ import annotations

import json
import os

from jobwatchdog.actuators import process
from jobwatchdog.actuators.base import ActFailedError, ActionContext, Done, OnceActuator, number
from jobwatchdog.model import Action, Json, Verb

TIMEOUT_S = 60.0


class ExecActuator(OnceActuator):
    """Runs it once; what it says goes into the receipt."""

    verb = Verb.EXEC
    touches = "whatever the site's command touches"

    async def precondition(self, action: Action, ctx: ActionContext) -> str | None:
        """An argv list."""
        return None if command_of(action) else "exec needs `command`: a list of strings, the first the program"

    def describe(self, action: Action, ctx: ActionContext) -> str:
        """The command line as a list."""
        return f"run {command_of(action)}"

    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """Exit code other than 0 is a failure."""
        argv = command_of(action)
        timeout_s = number(action.args, "timeout_s", number(action.args, "timeout", TIMEOUT_S))
        extra = action.args.get("env")
        env = facts_environment(ctx) | {k: str(v) for k, v in (extra.items() if isinstance(extra, dict) else ())}
        self.begin(action, ctx)
        try:
            ended = await process.run(
                argv, timeout_s=timeout_s, stdin=json.dumps(ctx.incident_facts()).encode(), env={**os.environ, **env}
            )
        except OSError as bad:
            raise ActFailedError(f"{argv[0]} cannot be run: {bad.strerror or bad}") from None
        data: dict[str, Json] = {"code": ended.code, "output": ended.output, "output_cut": ended.cut}
        if ended.code is None:
            raise ActFailedError(f"{argv[0]} was killed: it took longer than {timeout_s:g} s", **data)
        if not ended.well:
            raise ActFailedError(f"{argv[0]} ended with exit code {ended.code}", **data)
        return Done(f"{argv[0]} ended well", data)


def command_of(action: Action) -> list[str]:
    """Empty when it is not a list of strings: a string would ask for a shell."""
    value = action.args.get("command", action.args.get("argv"))
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        return []
    return [part for part in value if isinstance(part, str)]


def facts_environment(ctx: ActionContext) -> dict[str, str]:
    """The incident's plain facts; lists are joined by commas, as host lists are in most tools."""
    found: dict[str, str] = {}
    for name, value in ctx.incident_facts().items():
        if isinstance(value, list):
            if name != "evidence":
                found[f"JOBWATCHDOG_{name.upper()}"] = ",".join(map(str, value))
        elif value is not None:
            found[f"JOBWATCHDOG_{name.upper()}"] = str(value)
    return found
