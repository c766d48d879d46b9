"""Where a watch lives: in this process, or in actors that this process keeps alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import structlog

from jobwatchdog.actuators.local.control import JobControl
from jobwatchdog.model import JobId, Json, Signal
from jobwatchdog.shell.agents import AgentFacts, AgentPort, HereAgent, make_agent
from jobwatchdog.shell.spec import WatchSpec, control_of
from jobwatchdog.shell.watch import Watch

log = structlog.get_logger()

HEARTBEAT_S: Final = 5.0  # a supervisor that does not answer in this time twice is replaced
MISSES_MAX: Final = 2
REPLACEMENTS_MAX: Final = 20
START_S: Final = 60.0
NAMESPACE: Final = "jobwatchdog"

Update = tuple[int, list[str], int | None, dict[str, Json]]


class Host(Protocol):
    """What the command line needs of a watch, wherever it lives."""

    async def start(self) -> None:
        """Start the job, or find it again, and watch it."""

    async def updates(self, after: int) -> Update:
        """Return what happened since; see Watch.updates."""

    async def cancel_job(self, by: str) -> None:
        """Its user ends the job."""

    async def kill_job(self) -> None:
        """Its user insists."""

    async def close(self) -> None:
        """Stop watching; the job goes on."""


class PlainHost:
    """The watch in this process."""

    def __init__(self, spec: WatchSpec) -> None:
        self._watch = Watch(spec)

    @property
    def folder(self) -> Path:
        """The job's folder."""
        return self._watch.folder

    async def start(self, agent: AgentPort | None = None) -> None:
        """See the protocol; with an agent that lives elsewhere."""
        log_to(self._watch.folder)
        await self._watch.start(agent)

    async def updates(self, after: int) -> Update:
        """See the protocol."""
        return await self._watch.updates(after)

    async def cancel_job(self, by: str) -> None:
        """See the protocol."""
        await self._watch.cancel_job(by)

    async def kill_job(self) -> None:
        """See the protocol."""
        await self._watch.kill_job()

    async def close(self) -> None:
        """See the protocol."""
        await self._watch.close()


def log_to(folder: Path) -> None:
    """Send our own log, as JSON lines, to a file in the job's folder: the terminal belongs to the job."""
    folder.mkdir(parents=True, exist_ok=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory((folder / "watchdog.log").open("a", encoding="utf-8")),
        cache_logger_on_first_use=False,
    )


# ---- actors -----------------------------------------------------------------------------------------


class SupervisorActor(PlainHost):
    """Hosts a Watch; one instance a job. `updates` is also the heartbeat."""

    async def start_with(self, agent: Any) -> None:
        """Start the watch with an agent that lives in an actor of its own."""
        await self.start(_FarAgent(agent))

    async def post(self, signals: Sequence[Signal]) -> None:
        """Take signals."""
        await self._watch.post(signals)

    async def pid(self) -> int:
        """Return the process, for those who want to see it die."""
        return os.getpid()


class AgentActor(HereAgent):
    """Hosts a NodeAgent."""

    def __init__(self, spec: WatchSpec) -> None:
        self._spec = spec

    async def begin(self, supervisor: Any) -> None:
        """Load patterns, and watch; signals go to the supervisor."""
        spec = self._spec
        control = control_of(spec)
        job = control.spec.job if control is not None else JobId(spec.name)

        async def send(signals: Sequence[Signal]) -> None:
            await supervisor.post.remote(list(signals))

        super().__init__(await asyncio.to_thread(make_agent, spec, control, job, send))


class _FarAgent:
    """AgentPort over an actor handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def attempt_ended(self) -> None:
        await self._handle.attempt_ended.remote()

    async def attempt_began(self, attempt: int, logs: Sequence[str]) -> None:
        await self._handle.attempt_began.remote(attempt, list(logs))

    async def facts(self) -> AgentFacts:
        found: AgentFacts = await self._handle.facts.remote()
        return found

    async def stop(self) -> None:
        await self._handle.stop.remote()


class RayUnavailableError(RuntimeError):
    """Ray could not be started or reached."""


class RayHost:
    """Keeps supervisor and agent alive as actors; this process is the keeper that outlives them.

    Ray restarts what dies, and does not notice what is frozen; so the keeper has a heartbeat of its own.
    A replaced supervisor finds job, ledger and epoch again.
    """

    def __init__(self, spec: WatchSpec, address: str | None = None) -> None:
        self._spec = spec
        self._address = address
        self._actor: Any = None
        self._agent: Any = None
        self._misses = 0
        self._replaced = 0
        self._lost_s = 0.0
        self._control: JobControl | None = None

    async def start(self) -> None:
        """Start Ray (or connect), then the actors, then the watch."""
        log_to(Path(self._spec.state_dir) / "jobs" / self._spec.name)
        await asyncio.to_thread(start_ray, self._address)
        await self._make_actors()

    async def _make_actors(self) -> None:
        import ray

        spec = self._spec
        options = {"num_cpus": 0, "max_restarts": 0, "namespace": NAMESPACE}
        # Freshly made each time: a frozen predecessor may still hold its old name.
        supervisor = ray.remote(SupervisorActor).options(**options, name=f"supervisor-{spec.name}-{self._replaced}")
        agent = ray.remote(AgentActor).options(**options, name=f"agent-{spec.name}-{self._replaced}")
        self._actor, self._agent = supervisor.remote(spec), agent.remote(spec)
        await asyncio.wait_for(_await(self._agent.begin.remote(self._actor)), START_S)
        await asyncio.wait_for(_await(self._actor.start_with.remote(self._agent)), START_S)

    async def updates(self, after: int) -> Update:
        """Ask the supervisor; replace it when it is gone or does not answer."""
        import ray

        try:
            found: Update = await asyncio.wait_for(_await(self._actor.updates.remote(after)), HEARTBEAT_S)
            self._misses = 0
            return found
        except TimeoutError:
            self._misses += 1
            if self._misses < MISSES_MAX:
                return after, [], None, {}
            reason = f"no answer in {MISSES_MAX * HEARTBEAT_S:g} s"
        except ray.exceptions.RayActorError as error:
            reason = f"{type(error).__name__}"
        await self._replace(reason)
        return 0, [], None, {}

    async def _replace(self, reason: str) -> None:
        import ray

        self._replaced += 1
        log.warning("keeper.supervisor_replaced", job=self._spec.name, reason=reason, times=self._replaced)
        if self._replaced > REPLACEMENTS_MAX:
            raise RayUnavailableError(
                f"the supervisor was lost {self._replaced} times, last: {reason}; the job goes on"
            )
        for handle in (self._actor, self._agent):
            with contextlib.suppress(Exception):
                ray.kill(handle, no_restart=True)
        self._misses = 0
        await self._make_actors()

    async def actor_pid(self) -> int:
        """Return the supervisor's process."""
        return int(await _await(self._actor.pid.remote()))

    async def cancel_job(self, by: str) -> None:
        """See Host."""
        await asyncio.wait_for(_await(self._actor.cancel_job.remote(by)), HEARTBEAT_S)

    async def kill_job(self) -> None:
        """See Host."""
        await asyncio.wait_for(_await(self._actor.kill_job.remote()), 3 * HEARTBEAT_S)

    async def close(self) -> None:
        """See Host."""
        import ray

        with contextlib.suppress(Exception):
            await asyncio.wait_for(_await(self._actor.close.remote()), HEARTBEAT_S)
        await asyncio.to_thread(ray.shutdown)


async def _await(reference: Any) -> Any:
    return await reference


def start_ray(address: str | None) -> None:
    """Connect to a cluster that was named, or start a small private one; RayUnavailableError says why not."""
    if address:
        # Ray ends a driver whose GCS is silent for this long; the default is a minute.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
        if not _reachable(address):
            raise RayUnavailableError(f"no Ray cluster answers at {address}")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # The job is no child of a worker's in the end, but must not die with one either.
    os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "false")
    try:
        import ray

        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": NAMESPACE}
        if address:
            ray.init(address=address, **quiet)
            return
        # Unix socket paths end at 107 bytes, so the folder must be short.
        folder = os.environ.get("RAY_TMPDIR") or tempfile.mkdtemp(prefix="jwd-")
        ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 << 20,
                 _temp_dir=folder, **quiet)  # fmt: skip
    except Exception as error:
        raise RayUnavailableError(f"Ray could not be started: {type(error).__name__}: {error}") from error


def _reachable(address: str) -> bool:
    host, _, port = (urlsplit(address).netloc or address).rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 2.0):
            return True
    except (OSError, ValueError):
        return False


async def open_host(spec: WatchSpec, *, ray: bool, address: str | None = None) -> tuple[Host, str]:
    """Start a watch; where Ray is not to be had it lives in this process, and the second value says why."""
    if not ray:
        host: Host = PlainHost(spec)
        await host.start()
        return host, ""
    control_of(spec)  # mistakes of the target are told before seconds are spent on Ray
    far = RayHost(spec, address)
    begun = time.monotonic()
    try:
        await far.start()
    except RayUnavailableError as error:
        if address:
            raise
        plain = PlainHost(spec)
        await plain.start()
        return plain, f"{error}; going on without it"
    log.info("ray.started", seconds=round(time.monotonic() - begun, 1))
    return far, ""
