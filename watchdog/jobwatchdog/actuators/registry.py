"""Which actuator carries out a verb, for jobs of a launcher."""

from __future__ import annotations

from collections.abc import Mapping

from jobwatchdog.actuators.base import Actuator
from jobwatchdog.actuators.collect import CollectActuator
from jobwatchdog.actuators.local.restart import RestartActuator
from jobwatchdog.actuators.notify import AskActuator, NotifyActuator
from jobwatchdog.actuators.signals import HoldActuator, SignalActuator, StopActuator
from jobwatchdog.actuators.site_command import ExecActuator
from jobwatchdog.actuators.unsupported import Unsupported
from jobwatchdog.model import Verb

LAUNCHERS_WITH_PROCESSES = frozenset({"local", "pid"})


def build(launcher: str) -> Mapping[Verb, Actuator]:
    """An actuator for every verb; the ones out of reach say so when asked."""
    offered: list[Actuator] = [CollectActuator(), NotifyActuator(), AskActuator(), ExecActuator()]
    if launcher in LAUNCHERS_WITH_PROCESSES:
        offered += [RestartActuator(), StopActuator(), HoldActuator(), SignalActuator()]
    found = {actuator.verb: actuator for actuator in offered}
    return {verb: found.get(verb) or Unsupported(verb) for verb in Verb}
