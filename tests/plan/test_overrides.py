"""Overrides are written for the versions that the job runs, and keep what its user had set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobwatchdog.model import Json
from jobwatchdog.plan.overrides import environment, overrides, parse_version

TREE: dict[str, Json] = {"nccl": {"algo": "tree"}}
GROW: dict[str, Json] = {"allocator": {"expandable_segments": True}}


def test_tree_since_2_24_names_the_collective() -> None:
    """A plain `Tree` would fail there for collectives that have none."""
    assert environment(TREE, {}, (2, 26, 2)) == {"NCCL_ALGO": "allreduce:tree"}


def test_tree_before_2_24_is_a_plain_list() -> None:
    """Those releases know no other form."""
    assert environment(TREE, {}, (2, 21, 5)) == {"NCCL_ALGO": "Tree"}


def test_tree_for_an_unknown_nccl_is_not_written_and_the_reason_is_told() -> None:
    """Either form would break one half of the releases; a plain restart breaks none."""
    made = overrides(TREE, {})
    assert made.env == {}
    assert "2.24" in made.notes[0]


@pytest.mark.parametrize(
    ("torch", "written"), [((2, 9), "allreduce:tree"), ((2, 7), "allreduce:tree"), ((2, 6), "Tree")]
)
def test_the_nccl_of_a_known_pytorch_is_known(torch: tuple[int, ...], written: str) -> None:
    """Its wheels bring one along."""
    assert environment(TREE, {}, torch_version=torch) == {"NCCL_ALGO": written}


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        ("allreduce:ring", "allreduce:tree"),
        ("AllReduce:Ring;broadcast:ring", "broadcast:ring;allreduce:tree"),
        ("^NVLS", "^NVLS;allreduce:tree"),
        ("", "allreduce:tree"),
    ],
)
def test_the_users_choice_for_other_collectives_stays(own: str, merged: str) -> None:
    """Only all-reduce is asked for."""
    assert environment(TREE, {"NCCL_ALGO": own}, (2, 27)) == {"NCCL_ALGO": merged}


def test_the_allocator_has_a_new_name_since_2_9() -> None:
    """Both where the release is not known."""
    value = "expandable_segments:True"
    assert environment(GROW, {}, None, (2, 13)) == {"PYTORCH_ALLOC_CONF": value}
    assert environment(GROW, {}, None, (2, 6)) == {"PYTORCH_CUDA_ALLOC_CONF": value}
    assert environment(GROW, {}) == {"PYTORCH_ALLOC_CONF": value, "PYTORCH_CUDA_ALLOC_CONF": value}


def test_the_users_allocator_settings_are_merged() -> None:
    """Also one with a comma inside, and one under the old name."""
    own = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,roundup_power2_divisions:[256:1,512:2]"}
    made = environment(GROW, own, None, (2, 13))
    assert made == {"PYTORCH_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]"}


def test_timeouts_data_and_free_variables() -> None:
    """Whole numbers and texts."""
    args: dict[str, Json] = {"nccl": {"ib_timeout": 22, "ib_retry_cnt": 7}, "skip_data": 200, "env": {"A": "b"}}
    assert environment(args, {}) == {
        "NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7", "JOBWATCHDOG_SKIP_BATCHES": "200", "A": "b",
    }  # fmt: skip


def test_a_rung_without_overrides_changes_nothing() -> None:
    """So the override of a rung that did not help is gone with the next."""
    assert environment({"from": "last_good_checkpoint"}, {"NCCL_ALGO": "ring"}, (2, 26)) == {}


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.21.5+cuda12.4", (2, 21, 5)), ("v2.27.3-1", (2, 27, 3)), ("2.7.0a0", (2, 7, 0)), ("x", None), ("", None)],
)
def test_versions(text: str, version: tuple[int, ...] | None) -> None:
    """As they stand in logs."""
    assert parse_version(text) == version


@given(st.text(max_size=40))
def test_no_text_of_a_user_makes_the_merge_crash(own: str) -> None:
    """What was asked for is there in the end."""
    made = environment({**TREE, **GROW}, {"NCCL_ALGO": own, "PYTORCH_ALLOC_CONF": own}, (2, 26), (2, 13))
    assert "allreduce:tree" in made["NCCL_ALGO"]
    assert "expandable_segments:True" in made["PYTORCH_ALLOC_CONF"]
