"""An agent as the supervisor's side sees it, wherever it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jobwatchdog import bundled, plugins
from jobwatchdog.actuators.local.control import JobControl
from jobwatchdog.model import JobId
from jobwatchdog.shell.node_agent import NodeAgent
from jobwatchdog.shell.spec import WatchSpec
from jobwatchdog.sources.libraries import Libraries
from jobwatchdog.sources.patterns import load_scanner, read_catalogues


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What the agent knows and actions need."""

    rank_pids: Mapping[int, int]
    log_files: tuple[str, ...]
    checkpoint_paths: tuple[str, ...]
    libraries: Libraries = field(default_factory=Libraries)

    @classmethod
    def of(cls, agent: NodeAgent) -> AgentFacts:
        """Return the facts of an agent."""
        return cls(agent.rank_pids(), tuple(agent.followed()), tuple(agent.checkpoint_paths), agent.libraries())


class AgentPort(Protocol):
    """An agent, here or in another process."""

    async def attempt_ended(self) -> None:
        """Nothing of the attempt runs any more: the rest of its logs is to be told now."""

    async def attempt_began(self, attempt: int, logs: Sequence[str]) -> None:
        """A new attempt runs; its output is in these files."""

    async def facts(self) -> AgentFacts:
        """Return what it knows."""

    async def stop(self) -> None:
        """End it."""


class HereAgent:
    """The agent in this process."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._task = asyncio.create_task(agent.run(), name=f"agent {agent.job}")

    async def attempt_ended(self) -> None:
        """See the protocol."""
        await self._agent.attempt_ended()

    async def attempt_began(self, attempt: int, logs: Sequence[str]) -> None:
        """See the protocol."""
        self._agent.attempt_began(attempt, [Path(path) for path in logs])

    async def facts(self) -> AgentFacts:
        """See the protocol."""
        return AgentFacts.of(self._agent)

    async def stop(self) -> None:
        """See the protocol."""
        self._agent.stop()
        await asyncio.wait({self._task}, timeout=2.0)
        self._task.cancel()


def make_agent(spec: WatchSpec, control: JobControl | None, job: JobId, send: Any) -> NodeAgent:
    """Return an agent with its patterns loaded."""
    site = [*plugins.installed().registry.catalogues, *read_catalogues([Path(path) for path in spec.catalogues])]
    return NodeAgent(job, load_scanner(site, bundled.signature_texts()), send, control)
