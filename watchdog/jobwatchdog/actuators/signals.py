"""signal, stop and hold: what can be done to a job without starting it again."""

from __future__ import annotations

import asyncio
import signal

from jobwatchdog.actuators.base import ActFailedError, ActionContext, BaseActuator, Done, OnceActuator, number
from jobwatchdog.model import Action, Verb

STOP_GRACE_S = 30.0  # an orderly end: time for a last checkpoint


def _refusal(action: Action, ctx: ActionContext) -> str | None:
    if ctx.control is None:
        return "the job can only be watched: its processes are not known"
    latest = ctx.control.latest_attempt()
    return None if latest == action.attempt else f"attempt {latest} runs by now; this was for attempt {action.attempt}"


class SignalActuator(OnceActuator):
    """One signal to the job's processes, or to those of the suspected ranks."""

    verb = Verb.SIGNAL
    touches = "the processes of the job"

    async def precondition(self, action: Action, ctx: ActionContext) -> str | None:
        """A signal that exists, and the attempt that was meant."""
        return _refusal(action, ctx) or (None if _number(action) else f"no such signal: {action.args.get('signal')}")

    def describe(self, action: Action, ctx: ActionContext) -> str:
        """Which signal to whom."""
        whom = self._whom(action, ctx)
        return f"send {action.args.get('signal')} to {'every process of the job' if whom is None else sorted(whom)}"

    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """Sends it."""
        wanted, whom = _number(action), self._whom(action, ctx)
        assert ctx.control is not None, "the precondition has been asked"
        assert wanted is not None, "the precondition has been asked"
        self.begin(action, ctx)
        reached = ctx.control.signal(action.attempt, wanted, only=whom)
        if not reached:
            raise ActFailedError("none of the processes is alive")
        return Done(f"{wanted.name} sent to {len(reached)} processes", {"pids": [proc.pid for proc in reached]})

    @staticmethod
    def _whom(action: Action, ctx: ActionContext) -> frozenset[int] | None:
        """None: everybody. Ranks whose process is not known are nobody."""
        ranks = action.args.get("ranks")
        if not isinstance(ranks, list):
            return None
        return frozenset(ctx.rank_pids[r] for r in ranks if isinstance(r, int) and r in ctx.rank_pids)


class StopActuator(BaseActuator):
    """Ends the job for good: no restart afterwards."""

    verb = Verb.STOP
    touches = "the processes of the job"
    _marker = "the plan {plan}"

    async def precondition(self, action: Action, ctx: ActionContext) -> str | None:
        """The attempt that was meant."""
        return _refusal(action, ctx)

    def describe(self, action: Action, ctx: ActionContext) -> str:
        """How many processes."""
        assert ctx.control is not None, "the precondition has been asked"
        return f"end {len(ctx.control.processes(action.attempt))} processes and not start the job again"

    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """The marker first: after a crash in between, the end of the job is not taken for a failure."""
        control = ctx.control
        assert control is not None, "the precondition has been asked"
        await asyncio.to_thread(control.mark_cancelled, self._marker.format(plan=action.plan))
        report = await control.stop(action.attempt, number(action.args, "grace_s", STOP_GRACE_S))
        if not report.clean:
            raise ActFailedError(report.words())
        return Done(report.words(), {"ended": report.ended, "killed": report.killed})


class HoldActuator(StopActuator):
    """As stop, until a person releases the job: a local job holds its GPUs only while its processes live."""

    verb = Verb.HOLD
    _marker = "the plan {plan}, which holds it for a person to look at"


def _number(action: Action) -> signal.Signals | None:
    """From `SIGUSR1`, `USR1` or 10."""
    wanted = action.args.get("signal")
    try:
        if isinstance(wanted, str):
            return signal.Signals["SIG" + wanted.upper().removeprefix("SIG")]
        return signal.Signals(wanted) if isinstance(wanted, int) else None
    except (KeyError, ValueError):
        return None
