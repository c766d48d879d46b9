"""Events in any order, sensible or not: no move outside the tables, no broken promise, no tick without end."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from jobwatchdog.engine import Engine
from jobwatchdog.model import BreakerClosed, HistoryLoaded, JobPhase, Kind, LogEnded, Mode, Outcome, PastAction, Role
from jobwatchdog.testing.invariants import Invariants
from jobwatchdog.testing.scene import JOB, Scene

POLICY = """
apiVersion: jobwatchdog/v1
kind: Policy
metadata: {{name: test}}
spec:
  mode: {mode}
  rules:
    - name: crash
      on: [rank_crash, nccl_timeout, hang_no_output, cuda_error, loss_nan, gpu_lost, unknown_failure]
      ladder:
        - do: [collect, restart]
        - do: [{{drain: {{nodes: [n1]}}}}, {{restart: {{}}}}]
        - do: [ask, stop]
        - do: [{{notify: {{to: oncall}}}}]
      verify: {{steps_advance: 3, within: 5m}}
  guardrails:
    min_confidence: 0.5  # the scenes tell faults in text alone
    restarts: {{max: 3, per: 2h}}
    approval: [drain]
  notify: {{oncall: {{command: [echo]}}}}
"""
KINDS = [Kind.RANK_CRASH, Kind.NCCL_TIMEOUT, Kind.CUDA_ERROR, Kind.LOSS_NAN, Kind.GPU_LOST, Kind.CONFIG_OR_CODE_BUG]


class _Chaos:
    """Something happens, then something else."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.chance = random.Random(seed)
        self.number = 0

    def happen(self) -> None:
        gap_s = self.chance.choice([0.0, 0.1, 1.0, 3.0, 30.0, 400.0])
        now_s = self.scene.now_s + gap_s
        what = self.chance.choice([
            self.step, self.step, self.match, self.match, self.state, self.receipt, self.receipt, self.receipt,
            self.attempt, self.approval, self.odd, self.alive,
        ])  # fmt: skip
        what(now_s)

    def step(self, now_s: float) -> None:
        self.number += self.chance.choice([1, 1, 1, 5, -3])
        self.scene.step(now_s, max(self.number, 0), self.chance.choice([2.0, 2.1, 50.0, float("nan")]))

    def match(self, now_s: float) -> None:
        role = self.chance.choice([Role.CAUSE, Role.SYMPTOM])
        self.scene.match(now_s, self.chance.choice(KINDS), rank=self.chance.choice([None, 0, 1]), role=role)

    def state(self, now_s: float) -> None:
        self.scene.state(now_s, self.chance.choice([*JobPhase, JobPhase.RUNNING, JobPhase.FAILED]))

    def receipt(self, now_s: float) -> None:
        self.scene.until(now_s)
        if self.scene.in_flight is not None:
            attempt = self.scene.attempt + self.chance.choice([0, 1])
            self.scene.receipt(now_s, self.chance.choice([*Outcome, Outcome.DONE]), "words", new_attempt=attempt)

    def attempt(self, now_s: float) -> None:
        self.scene.registered(now_s, self.scene.attempt + self.chance.choice([0, 1]))

    def approval(self, now_s: float) -> None:
        if self.scene.asked is not None:
            self.scene.approval(now_s, self.chance.random() < 0.7)

    def alive(self, now_s: float) -> None:
        self.scene.alive(now_s)

    def odd(self, now_s: float) -> None:
        events = [
            BreakerClosed(now_s=now_s, policy="test", by="x"),
            LogEnded(now_s=now_s, job=JOB),
            HistoryLoaded(now_s=now_s, job=JOB, past=()),
        ]
        self.scene.at(now_s, self.chance.choice(events))


@pytest.mark.parametrize("mode", Mode)
def test_nothing_breaks_whatever_happens(mode: Mode, make_engine: Callable[..., Engine]) -> None:
    """Sixty seeds a mode, eighty events each."""
    for seed in range(60):
        scene = Scene(make_engine(POLICY.format(mode=mode)), Invariants(restarts_max=3, restarts_per_s=7200.0))
        scene.registered()
        chaos = _Chaos(scene, seed)
        try:
            for _ in range(80):
                chaos.happen()
            scene.until(scene.now_s + 4000.0)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def test_history_with_every_outcome_is_taken(make_engine: Callable[..., Engine]) -> None:
    """Whatever the ledger remembers of a job, a new engine starts from it."""
    scene = Scene(make_engine(POLICY.format(mode="enforce")))
    scene.registered()
    scene.match(1.0, Kind.RANK_CRASH)
    scene.until(5.0)
    assert scene.in_flight is not None
    for outcome in (None, *Outcome):
        past = PastAction(
            action=scene.in_flight, policy="test", rule="crash", rung=1, kind=Kind.RANK_CRASH,
            ordered_s=3.0, outcome=outcome, finished_s=None if outcome is None else 4.0,
        )  # fmt: skip
        engine = make_engine(POLICY.format(mode="enforce"))
        engine.handle(HistoryLoaded(now_s=10.0, job=JOB, past=(past,)))
        waits = engine.in_flight() != []
        assert waits == (outcome in (None, Outcome.UNKNOWN))
