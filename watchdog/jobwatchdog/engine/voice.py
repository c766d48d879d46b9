"""How the engine speaks: refusals once a reason, and incidents moved through their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jobwatchdog.engine.ports import Change, Tracker
from jobwatchdog.engine.runtime import JobRuntime
from jobwatchdog.model import Check, Decision, IncidentId, IncidentState, PlanRefused

REFUSALS_MAX = 10_000  # remembered a job, not to be said twice


class Voice:
    """Emits decisions for one engine."""

    def __init__(
        self, tracker: Tracker, emit: Callable[[Decision], None], take: Callable[[Iterable[Change]], None]
    ) -> None:
        self._tracker = tracker
        self.emit = emit
        self.take = take

    def refuse(
        self, rt: JobRuntime, incident: IncidentId, policy: str, checks: tuple[Check, ...], now_s: float
    ) -> None:
        """Say why not, once a reason: numbers in the words may differ, the failing guards count."""
        reason = f"{policy}|{'|'.join(sorted({check.name for check in checks if not check.passed}))}"
        if (incident, reason) not in rt.refused:
            if len(rt.refused) >= REFUSALS_MAX:
                rt.refused.clear()
            rt.refused.add((incident, reason))
            self.emit(PlanRefused(now_s=now_s, incident=incident, policy=policy, checks=checks))

    def say(self, rt: JobRuntime, incident: IncidentId, policy: str, guard: str, because: str, now_s: float) -> None:
        """A refusal for one reason of the engine's own."""
        self.refuse(rt, incident, policy, (Check(name=guard, passed=False, because=because),), now_s)

    def set_state(self, rt: JobRuntime, id: IncidentId, state: IncidentState, why: str, now_s: float) -> None:
        """Move an incident; one from before the engine's time is known to the planner only."""
        incident = rt.open.get(id)
        if incident is not None and incident.state is not state:
            self.take(self._tracker.set_state(id, state, now_s, why))

    def close(self, rt: JobRuntime, id: IncidentId, state: IncidentState, why: str, now_s: float) -> None:
        """Move an incident to its end; nothing is planned for it any more."""
        self.set_state(rt, id, state, why, now_s)
        rt.waits.pop(id, None)
