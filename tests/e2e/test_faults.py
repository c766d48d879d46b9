"""A real two-rank PyTorch job, each fault, from the command line to the end of training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobwatchdog.model import IncidentState, Kind, RestartHelps, Verb

if TYPE_CHECKING:
    from tests.e2e.conftest import Toy

pytestmark = pytest.mark.torch


def _restored_once(toy: Toy, code: int, kind: Kind) -> None:
    assert code == 0, toy.said
    assert toy.ordered(Verb.RESTART) == ["restart:toy:0"]
    assert toy.starts() == 4
    assert f"training finished after step {toy.steps}" in toy.output(1)
    assert [i.kind for i in toy.incidents()] == [kind]
    assert toy.incidents()[0].state is IncidentState.RESOLVED


def test_a_killed_rank(torch_toy: Toy) -> None:
    """Its death is the cause, not what the other rank says of the broken connection."""
    _restored_once(torch_toy, torch_toy.finish("kill"), Kind.RANK_CRASH)
    assert torch_toy.incidents()[0].suspects.ranks == (1,)
    assert torch_toy.restart(1)["checkpoint_step"] == 15
    assert "at step 15" in torch_toy.output(1)


def test_a_stopped_rank_with_the_group_timeout_at_thirty_minutes(torch_toy: Toy) -> None:
    """Silence is seen in seconds, stacks are kept, and the stopped rank is the one that is named."""
    _restored_once(torch_toy, torch_toy.finish("stop"), Kind.HANG_NO_OUTPUT)
    assert torch_toy.incidents()[0].suspects.ranks == (1,)
    assert torch_toy.restart(1)["checkpoint_step"] == 15
    (stack,) = torch_toy.job_folder.glob("bundles/*/stack-rank1.txt")
    assert "_break (jobwatchdog/testing/toy_train.py" in stack.read_text(), "the line in which the rank stands still"


def test_out_of_memory_after_a_checkpoint(torch_toy: Toy) -> None:
    """Told from a plain OOM; the allocator's setting travels under the name that this PyTorch reads."""
    _restored_once(torch_toy, torch_toy.finish("oom-after-checkpoint"), Kind.OOM_AFTER_CHECKPOINT)
    started = torch_toy.restart(1)
    assert started["overrides"] == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert started["checkpoint_step"] == 20


def test_nan_loss(torch_toy: Toy) -> None:
    """Training printed NaN for steps; the restart goes back to before the first of them."""
    _restored_once(torch_toy, torch_toy.finish("nan"), Kind.LOSS_NAN)
    assert torch_toy.restart(1)["checkpoint_step"] == 15


def test_a_loss_spike(torch_toy: Toy) -> None:
    """A checkpoint that was made after the spike began is not a good one."""
    torch_toy.steps, torch_toy.fault_step = 90, 52
    _restored_once(torch_toy, torch_toy.finish("spike"), Kind.LOSS_SPIKE)
    assert torch_toy.restart(1)["checkpoint_step"] == 50


def test_a_corrupt_newest_checkpoint(torch_toy: Toy) -> None:
    """It is named and passed over."""
    _restored_once(torch_toy, torch_toy.finish("corrupt-checkpoint"), Kind.RANK_CRASH)
    started = torch_toy.restart(1)
    assert started["checkpoint_step"] == 10
    skipped = started["skipped"]
    assert isinstance(skipped, list)
    assert [Path(one["path"]).name for one in skipped] == ["step-000015.pt"]
    assert all(one["reason"] for one in skipped)


def test_a_bug_is_reported_and_never_restarted(torch_toy: Toy) -> None:
    """It would only come back at the same step."""
    code = torch_toy.finish("bug")
    assert code == 1
    assert torch_toy.starts() == 2
    assert torch_toy.ordered(Verb.RESTART) == []
    (incident,) = torch_toy.incidents()
    assert incident.kind is Kind.CONFIG_OR_CODE_BUG
    assert incident.restart_helps is RestartHelps.NO
    assert "lables" in "".join(e.text for e in incident.evidence)


def test_a_restart_that_hangs_is_an_incident_of_its_own(torch_toy: Toy, tmp_path: Path) -> None:
    """The next attempt never reaches a step: it is restarted in turn, and then training goes on."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    code = torch_toy.finish("hang-on-restart", policy=str(policy))
    assert code == 0, torch_toy.said
    assert torch_toy.ordered(Verb.RESTART) == ["restart:toy:0", "restart:toy:1"]
    assert torch_toy.starts() == 6
    assert f"training finished after step {torch_toy.steps}" in torch_toy.output(2)


POLICY = """\
apiVersion: jobwatchdog/v1
kind: Policy
metadata: {name: quick}
spec:
  mode: enforce
  rules:
    - name: stopped
      on: [rank_crash, hang_no_output]
      ladder:
        - do: [{restart: {from: last_good_checkpoint}}]
        - do: [{restart: {from: last_good_checkpoint}}]
      verify: {steps_advance: 3, within: 25s}
  guardrails:
    restarts: {max: 3, per: 1h}
"""


def test_slow_checkpoints_and_pauses_are_left_alone(torch_toy: Toy) -> None:
    """A save and an evaluation, each eighty times as long as a step: no incident, no action."""
    code = torch_toy.finish("slow-checkpoint")
    assert code == 0
    assert torch_toy.incidents() == []
    assert torch_toy.ordered() == []
    assert torch_toy.starts() == 2
