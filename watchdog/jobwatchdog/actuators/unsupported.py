"""Verbs that this job's launcher cannot carry out: said clearly, and never half done."""

from __future__ import annotations

from jobwatchdog.actuators.base import ActFailedError, ActionContext, BaseActuator, Done
from jobwatchdog.model import Action, Verb

NEEDS = {
    Verb.RESTART: "a launcher that can start the job again",
    Verb.DRAIN: "a launcher with nodes, such as Slurm",
    Verb.UNDRAIN: "a launcher with nodes, such as Slurm",
    Verb.FAILOVER_SM: "access to the InfiniBand fabric's subnet managers",
    Verb.EMPTY_CACHE: "the in-job client, which the job does not use",
}


class Unsupported(BaseActuator):
    """FAILED with what would be needed: the plan goes on to its next rung or to a person."""

    def __init__(self, verb: Verb) -> None:
        self.verb = verb

    def describe(self, action: Action, ctx: ActionContext) -> str:
        """Nothing."""
        return f"fail: {self._why(ctx)}"

    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """Always fails."""
        raise ActFailedError(self._why(ctx))

    def _why(self, ctx: ActionContext) -> str:
        needs = NEEDS.get(self.verb, "support by the job's launcher")
        return f"{self.verb.value} needs {needs}; this job is of launcher {ctx.job.launcher!r}"
