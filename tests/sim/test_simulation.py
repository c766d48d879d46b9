"""Two hundred worlds from seeds: lost, late, doubled signals; failing actuators; a watchdog that dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobwatchdog.engine import Engine
from jobwatchdog.testing.invariants import Invariants
from jobwatchdog.testing.odds import Odds
from jobwatchdog.testing.simulation import run

POLICY = """
apiVersion: jobwatchdog/v1
kind: Policy
metadata: {name: sim}
spec:
  mode: enforce
  rules:
    - name: all
      on: [rank_crash, nccl_timeout, nccl_error, hang_no_output, cuda_error, unknown_failure]
      ladder:
        - do:
            - collect: {stacks: true}
            - restart: {from: last_good_checkpoint}
        - do:
            - restart: {from: last_good_checkpoint, nccl: {algo: tree}}
        - do:
            - restart: {from: last_good_checkpoint}
        - do:
            - notify: {to: oncall, severity: critical}
      verify: {steps_advance: 3, within: 5m}
  guardrails:
    min_confidence: 0.5  # the worlds tell faults in text alone
    restarts: {max: 3, per: 1h}
  notify: {oncall: {command: [echo]}}
"""


@pytest.mark.parametrize("block", range(10))
def test_promises_hold_in_every_world(block: int, make_engine: Callable[..., Engine]) -> None:
    """Twenty seeds a block; a failure prints its seed and the last lines of its log."""
    for seed in range(block * 20, block * 20 + 20):
        run(seed, lambda: make_engine(POLICY), Invariants(restarts_max=3, restarts_per_s=3600.0))


def test_the_same_seed_gives_the_same_decisions(make_engine: Callable[..., Engine]) -> None:
    """Byte for byte, or no failure could be looked into."""
    first, second = (run(7, lambda: make_engine(POLICY), Invariants()).log for _ in range(2))
    assert first == second


def test_faults_do_happen(make_engine: Callable[..., Engine]) -> None:
    """Over a few seeds every kind of mishap is seen, or the test above would prove little."""
    words = "\n".join("\n".join(run(seed, lambda: make_engine(POLICY), Invariants()).log) for seed in range(12))
    for word in ("(dead)", "(hung)", "the watchdog dies", "HistoryLoaded", "failed simulated", "unknown", "resolved"):
        assert word in words


def test_a_kind_world_needs_no_person(make_engine: Callable[..., Engine]) -> None:
    """One crash, working actuators, a watchdog that lives: the job runs again and nobody was called."""
    kind = Odds(
        lost=0, doubled=0, late_s=0.1, state_unknown=0, act_fails=0, act_unknown=0, born_dead=0, born_hung=0,
        engine_dies_every_s=1e9, user_cancels=0, code_bug=0, fault_every_s=400,
    )  # fmt: skip
    for seed in range(5):
        world = run(seed, lambda: make_engine(POLICY), Invariants(), kind)
        assert world.truth.state == "running"
        assert world.called == "", world.log[-30:]
