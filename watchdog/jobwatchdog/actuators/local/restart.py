"""Restart: end what is left of the job, pick the last good checkpoint, start the next attempt, exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from jobwatchdog.actuators import checkpoints
from jobwatchdog.actuators.base import ActFailedError, ActionContext, BaseActuator, Done, done_before, number, unknown
from jobwatchdog.actuators.checkpoints import CheckpointInfo, Choice
from jobwatchdog.actuators.checkpoints.choose import check
from jobwatchdog.actuators.checkpoints.roots import roots
from jobwatchdog.actuators.local.control import JobControl
from jobwatchdog.actuators.local.launcher import GRACE_S, LaunchError
from jobwatchdog.actuators.local.records import AttemptPhase, read_json, write_json
from jobwatchdog.model import Action, Incident, Json, Kind, Receipt, Verb
from jobwatchdog.plan.overrides import overrides

# Faults that may have reached the weights: a checkpoint made since is not good, however whole. In all others the
# weights were right until the job ended, and the newest whole checkpoint is the best one.
TAINTING = frozenset({Kind.LOSS_NAN, Kind.LOSS_SPIKE, Kind.ECC, Kind.XID, Kind.GPU_LOST, Kind.NVLINK})
# A bad loss is printed one step after the update that caused it.
SHOWS_LATE = frozenset({Kind.LOSS_NAN, Kind.LOSS_SPIKE})
SCRATCH = frozenset({"scratch", "none"})
SHIM_LOOKS_MAX = 200  # a living shim is between its claim and its start record for milliseconds
CHECKPOINTS_VARIABLE = "JOBWATCHDOG_CHECKPOINTS"  # in the job's environment: where it keeps them, `:` between


class RestartActuator(BaseActuator):
    """For every job whose launcher offers a JobControl."""

    verb = Verb.RESTART
    touches = "the processes of the job; a new attempt of it"

    async def precondition(self, action: Action, ctx: ActionContext) -> str | None:
        """Still the attempt that failed, not cancelled, not finished, possible at all."""
        control = ctx.control
        if control is None:
            return "the job can only be watched: no launcher is known that could start it again"
        if (who := control.cancelled()) is not None:
            return f"the job was ended by {who}: it stays ended"
        if (latest := control.latest_attempt()) != action.attempt:
            return f"attempt {latest} was started already; this restart was for attempt {action.attempt}"
        state = control.state(action.attempt)
        if state.phase is AttemptPhase.UNSEEN:
            return f"its state cannot be seen from here ({state.detail}): it may be running"
        if state.succeeded:
            return "the job has finished successfully"
        return control.cannot_restart()

    def describe(self, action: Action, ctx: ActionContext) -> str:
        """With the checkpoint as it would be chosen now."""
        assert ctx.control is not None, "the precondition has been asked"
        living = len(ctx.control.processes(action.attempt))
        try:
            start = _origin_words(_choose(action, ctx, ctx.control))
        except ActFailedError as bad:
            start = f"nothing: {bad}"
        return f"end {living} processes and start attempt {action.attempt + 1} from {start}"

    async def act(self, action: Action, ctx: ActionContext) -> Done:
        """The choice is made before anything is ended, and again after, when the job can no longer write."""
        control = ctx.control
        assert control is not None, "the precondition has been asked"
        alive = bool(control.processes(action.attempt))
        choice = await asyncio.to_thread(_choose, action, ctx, control)
        begun = time.monotonic()
        report = await control.stop(action.attempt, number(action.args, "grace_s", GRACE_S))
        stop_s = time.monotonic() - begun
        if not report.clean:
            raise ActFailedError(f"not restarted, as the old attempt still runs: {report.words()}", stop_s=stop_s)
        if alive:
            choice = await asyncio.to_thread(_choose, action, ctx, control)
        await asyncio.to_thread(_remember_tainted, ctx.folder, choice)
        return await self._start(action, ctx, control, choice, stop_s)

    async def _start(
        self, action: Action, ctx: ActionContext, control: JobControl, choice: Choice | None, stop_s: float
    ) -> Done:
        new = action.attempt + 1
        changed = overrides(action.args, control.spec.env, ctx.nccl_version, ctx.torch_version)
        env = changed.env | _resume_variables(choice)
        data: dict[str, Json] = {
            "new_attempt": new,
            "checkpoint": str(choice.path) if choice and choice.path else None,
            "checkpoint_step": choice.step if choice else None,
            "skipped": [{"path": str(path), "reason": why} for path, why in (choice.passed_over if choice else ())],
            "overrides": dict(changed.env),
            "notes": [*changed.notes],
        }
        await asyncio.to_thread(write_json, ctx.folder / f"restart-{new}.json", {"action": action.id, **data})
        begun = time.monotonic()
        try:
            attempt = await control.start(new, env)
        except (LaunchError, OSError) as bad:
            raise ActFailedError(f"attempt {new} could not be started: {bad}", **data) from None
        start_s = time.monotonic() - begun
        by = "" if attempt.started_here else " (it had been started already: left as it is)"
        nodes = " (exclude_nodes means nothing to a local job)" if action.args.get("exclude_nodes") else ""
        detail = f"attempt {new} runs as process {attempt.pid}, from {_origin_words(choice)}{by}{nodes}"
        return Done(detail, data | {"pid": attempt.pid, "stop_s": round(stop_s, 3), "start_s": round(start_s, 3)})

    async def resolve(self, action: Action, ctx: ActionContext) -> Receipt:
        """The claim of the next attempt is the witness."""
        if ctx.control is None:
            return unknown(action, "the job's launcher is not known any more", repeatable=False)
        new = action.attempt + 1
        for _ in range(SHIM_LOOKS_MAX):
            if (state := ctx.control.state(new)).phase is not AttemptPhase.STARTING:
                break
            await asyncio.sleep(0.05)
        if state.phase in (AttemptPhase.RUNNING, AttemptPhase.EXITED):
            noted = read_json(ctx.folder / f"restart-{new}.json") or {}
            data = {name: value for name, value in noted.items() if name != "action"} | {"new_attempt": new}
            return done_before(action, f"attempt {new} had been started: found by its record", **data)
        if state.phase is AttemptPhase.STARTING:
            return unknown(action, f"attempt {new} is claimed, its shim still starting", repeatable=False)
        return unknown(action, f"attempt {new} was never started", repeatable=True)


# ---- which checkpoint -------------------------------------------------------------------------------


def _choose(action: Action, ctx: ActionContext, control: JobControl) -> Choice | None:
    """None: nothing is known of checkpoints, the job itself decides. A Choice without a find: from scratch."""
    wanted = action.args.get("from", "last_good_checkpoint")
    if not isinstance(wanted, str) or wanted in SCRATCH:
        return Choice(None)
    folders = checkpoint_folders(ctx, control)
    if wanted not in ("last_good_checkpoint", "last_good", "latest"):
        info = check(Path(control.spec.cwd) / wanted)
        if info.problem is not None:
            raise ActFailedError(f"checkpoint {info.path} {info.problem}")
        return Choice(info)
    if not folders:
        return None
    before_s, before_step = limits(ctx.incident) if wanted != "latest" else (None, None)
    choice = checkpoints.last_good(folders, before_s, before_step, distrusted=_distrust(ctx.folder))
    _refuse_loss(action, choice, folders)
    return choice


def checkpoint_folders(ctx: ActionContext, control: JobControl) -> list[Path]:
    """Named by the user, printed by the job, or stated in the job's environment."""
    stated = control.spec.env.get(CHECKPOINTS_VARIABLE, "")
    return roots([*ctx.checkpoint_paths, *(Path(part) for part in stated.split(":") if part)], Path(control.spec.cwd))


def limits(incident: Incident | None) -> tuple[float | None, int | None]:
    """Time and step from which on a whole checkpoint is not a good one."""
    if incident is None or incident.kind not in TAINTING:
        return None, None
    step = incident.onset_step
    if step is not None and incident.kind in SHOWS_LATE:
        step -= 1
    return incident.onset_s, step


def _refuse_loss(action: Action, choice: Choice, folders: list[Path]) -> None:
    """Going back to step 0 must be asked for when there is something to lose."""
    names = [f"{path.name} ({why})" for path, why in choice.passed_over if "still being written" not in why]
    if choice.found is not None or not names or action.args.get("allow_scratch") is True:
        return
    raise ActFailedError(
        f"none of the checkpoints in {', '.join(map(str, folders))} is good, and the plan does not allow to start from "
        f"scratch: {'; '.join(names[:5])}",
        skipped=[{"path": str(path), "reason": why} for path, why in choice.passed_over],
    )


def _resume_variables(choice: Choice | None) -> dict[str, str]:
    """Unset: the job decides. Empty: from scratch."""
    if choice is None:
        return {}
    found = {"JOBWATCHDOG_RESUME_FROM": str(choice.path or "")}
    if choice.step is not None:
        found["JOBWATCHDOG_RESUME_STEP"] = str(choice.step)
    return found


def _origin_words(choice: Choice | None) -> str:
    if choice is None:
        return "where the job itself decides (no checkpoint folder is known)"
    if choice.found is None:
        return "scratch" if choice.passed_over else "scratch (no checkpoint was asked for or made yet)"
    step = "" if choice.step is None else f" of step {choice.step}"
    over = f", {len(choice.passed_over)} newer passed over" if choice.passed_over else ""
    return f"checkpoint {choice.found.path.name}{step}{over}"


def _remember_tainted(folder: Path, choice: Choice | None) -> None:
    """What one fault tainted stays bad for the next restart, though that one has a later onset."""
    if choice is None or not choice.tainted:
        return
    noted = (read_json(folder / "tainted.json") or {}) | {str(i.path): i.time_s for i in choice.tainted}
    write_json(folder / "tainted.json", noted)


def _distrust(folder: Path) -> Callable[[CheckpointInfo], str | None]:
    noted = read_json(folder / "tainted.json") or {}

    def why(info: CheckpointInfo) -> str | None:
        same = noted.get(str(info.path)) == info.time_s
        return "made after an earlier fault had begun" if same else None

    return why
