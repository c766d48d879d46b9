"""A story read back from the ledger and folded again leads to the same decisions, and to what is in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobwatchdog.engine import Engine
from jobwatchdog.ledger import Ledger, Reader
from jobwatchdog.model import Action, ActionOrdered, Decision, Event, Kind, Outcome, Tick
from jobwatchdog.model.codec import dumps
from jobwatchdog.testing.scene import JOB, Scene

POLICY = """
apiVersion: jobwatchdog/v1
kind: Policy
metadata: {name: test}
spec:
  mode: enforce
  rules:
    - name: crash
      on: [rank_crash, cuda_error]
      ladder:
        - do: [collect, restart]
      verify: {steps_advance: 5, within: 10m}
  guardrails: {min_confidence: 0.5}
"""


class _Recorded(Scene):
    """A scene whose events and decisions are kept, as a supervisor keeps them."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.kept: list[Event | Decision] = []

    def feed(self, event: Event) -> list[Decision]:
        made = super().feed(event)
        self.kept += [event, *made]
        return made


async def test_a_story_from_disk_gives_the_same_decisions(tmp_path: Path, make_engine: Callable[..., Engine]) -> None:
    """Two faults, one restart in flight when the watchdog dies: the next one knows of it, and only of it."""
    scene = _Recorded(make_engine(POLICY))
    scene.registered()
    scene.steps(1.0, 1, 20)
    scene.match(30.0, Kind.RANK_CRASH, rank=1)
    scene.until(40.0)
    scene.receipt(41.0, Outcome.DONE)
    scene.receipt(42.0, Outcome.DONE, new_attempt=1, checkpoint_step=10)
    scene.registered(43.0, 1)
    scene.steps(50.0, 11, 20)
    scene.match(80.0, Kind.CUDA_ERROR, rank=0)
    scene.until(90.0)
    scene.receipt(91.0, Outcome.DONE)

    url = str(tmp_path / "ledger.db")
    async with await Ledger.open(url) as ledger:
        await ledger.take_epoch("first")
        await ledger.record(scene.kept)
        for action in _orders(scene.kept):
            assert await ledger.intend(action)

    async with await Reader.open(url) as reader:
        items = [entry.item for entry in await reader.story(JOB)]
        pending = await reader.pending()
    assert [dumps(item) for item in items] == [dumps(item) for item in scene.kept]

    engine = make_engine(POLICY)
    again: list[Event | Decision] = []
    for event in (item for item in items if isinstance(item, Event)):
        again += [event, *engine.handle(event)]
    assert [dumps(item) for item in again] == [dumps(item) for item in scene.kept]
    assert any(isinstance(item, Tick) for item in items), "ticks are part of the story"
    (in_flight,) = engine.in_flight()
    assert in_flight.key == "restart:job:1"
    assert in_flight.id in {past.action.id for past in pending}


def _orders(items: list[Event | Decision]) -> list[Action]:
    return [item.action for item in items if isinstance(item, ActionOrdered)]
