"""What stands before a line says who wrote it, and only that."""

from __future__ import annotations

import pytest

from jobwatchdog.signals.prefixes import Prefixed, origin_from_path, split_prefix

REST = "RuntimeError: boom"
GLOG = "[E218 04:54:22.864467604 ProcessGroupNCCL.cpp:616] x"
NCCL = "NCCL WARN NET/IB : Got async event : port error"

SHAPES: list[tuple[str, Prefixed]] = [
    (REST, Prefixed(REST)),
    # launchers
    (f"[rank3]: {REST}", Prefixed(REST, rank=3)),
    (f"[rank3]:{REST}", Prefixed(REST, rank=3)),
    (f"[rank12]:{GLOG}", Prefixed(GLOG, rank=12)),
    (f"[default0]:{REST}", Prefixed(REST, local_rank=0)),
    (f"[trainer7]: {REST}", Prefixed(REST, local_rank=7)),
    (f"[default1]:[rank9]: {REST}", Prefixed(REST, rank=9, local_rank=1)),
    (f"12: {REST}", Prefixed(REST, rank=12)),
    (f" 7: {REST}", Prefixed(REST, rank=7)),
    (f"  7: [rank7]: {REST}", Prefixed(REST, rank=7)),
    (f"[1,3]<stderr>:{REST}", Prefixed(REST, rank=3)),
    (f"[1,3]<stdout>: {REST}", Prefixed(REST, rank=3)),
    (f"(pid=123) {REST}", Prefixed(REST, pid=123)),
    (f"(pid=123, ip=10.0.0.1) {REST}", Prefixed(REST, pid=123, node="10.0.0.1")),
    (f"(RayTrainWorker pid=123, ip=10.0.0.1) {REST}", Prefixed(REST, pid=123, node="10.0.0.1")),
    (f"(RayTrainWorker(rank=3) pid=123) {REST}", Prefixed(REST, pid=123)),
    (f"node-12: [rank3]: {REST}", Prefixed(REST, rank=3, node="node-12")),
    ("worker-1: [2026-11-30 12:00:01,123] [INFO] x", Prefixed("[2026-11-30 12:00:01,123] [INFO] x", node="worker-1")),
    (f"node-12: 3: {REST}", Prefixed(REST, rank=3, node="node-12")),
    # libraries
    (f"node-6519:89:345 [4] {NCCL}", Prefixed(NCCL, local_rank=4, node="node-6519", pid=89)),
    (f"node-1:1234:1290 {NCCL}", Prefixed(NCCL, node="node-1", pid=1234)),
    # collectors
    (f"2026-11-30T12:00:01.123456789Z {REST}", Prefixed(REST)),
    (f"2026-11-30T12:00:01.123456789Z stderr F {REST}", Prefixed(REST)),
    (f"2026-11-30T12:00:01.123456789+01:00 stdout P {REST}", Prefixed(REST)),
    (f"2026-11-30T12:00:01.1Z stderr F [rank3]: {REST}", Prefixed(REST, rank=3)),
    (f"2026-11-30T12:00:01.1Z 12: [rank12]: {REST}", Prefixed(REST, rank=12)),
    # kernel and syslog
    ("[155044.070707] NVRM: Xid", Prefixed("NVRM: Xid")),
    ("<3>[  155.070707][ T1234] NVRM: Xid", Prefixed("NVRM: Xid")),
    ("[Mon Nov 30 12:00:01 2026] NVRM: Xid", Prefixed("NVRM: Xid")),
    ("Nov 30 12:00:01 node-12 kernel: [155044.07] NVRM: Xid", Prefixed("[155044.07] NVRM: Xid", node="node-12")),
    ("Nov 30 12:00:01 node-12 kernel: NVRM: Xid", Prefixed("NVRM: Xid", node="node-12")),
    ("2026-11-30T12:00:01.123456+00:00 node-12 kernel: NVRM: Xid", Prefixed("NVRM: Xid", node="node-12")),
    ("Nov  3 12:00:01 node-12 sshd[1761]: x", Prefixed("sshd[1761]: x", node="node-12")),
]  # fmt: skip

NONE_AT_ALL = [
    "Epoch: [27/520] loss: 2.4",
    "Epoch: [3][ 120/5005]\tTime  0.412",
    "Test: [ 10/196]",
    "Train2: [ 10/196]",
    "Step1: [12/90]",
    "Loss: [0.1, 0.2]",
    "acc1: [71.2]",
    "Traceback (most recent call last):",
    '  File "train.py", line 12, in <module>',
    "12:00:01 started",
    "1: ",
    "(pid=x) y",
    "[ranks]: y",
    "{'loss': 1.2}",
    "",
    " ",
]


@pytest.mark.parametrize(("line", "said"), SHAPES, ids=[line[:40] for line, _ in SHAPES])
def test_a_prefix_is_peeled_and_read(line: str, said: Prefixed) -> None:
    """Rank, local rank, node, process; and the rest of the line."""
    found = split_prefix(line)
    if said.rest.startswith("[155044.07] NVRM"):
        assert found.rest in (said.rest, "NVRM: Xid")
        assert found.node == said.node
    else:
        assert found == said


@pytest.mark.parametrize("line", NONE_AT_ALL)
def test_what_looks_like_a_prefix_is_none(line: str) -> None:
    """Nothing is peeled, nobody is named."""
    assert split_prefix(line) == Prefixed(line)


def test_a_rank_in_the_middle_counts_where_no_prefix_names_one() -> None:
    """A progress bar without a line break stands before it; the global rank goes before the one of a group."""
    assert split_prefix(f"  8%|8 | 4/50 [06:40<1:16:40,  1.00s/it][rank3]: {REST}").rank == 3
    assert split_prefix("[E ProcessGroupNCCL.cpp:821] [Rank 5] Watchdog caught").rank == 5
    assert split_prefix("step 3 [Rank 1] x [rank9]: y").rank == 9


def test_peeling_ends() -> None:
    """A line of prefixes alone costs a few steps, however long it is."""
    line = "[rank1]: " * 1000
    assert len(split_prefix(line).rest) >= len(line) - 5 * len("[rank1]: ")


@pytest.mark.parametrize(
    ("path", "rank", "local_rank", "node"),
    [
        ("/logs/none_abc/attempt_0/3/stderr.log", None, 3, None),
        ("/logs/rank_12.log", 12, None, None),
        ("/logs/rank12/stdout", 12, None, None),
        ("/logs/run.rank-7.err", 7, None, None),
        ("/logs/slurm-38193_node012_5.out", 5, None, "node012"),
        ("/logs/node-012.log", None, None, "node-012"),
        ("/logs/node-012.dmesg.log", None, None, "node-012"),
        ("/logs/train.log", None, None, None),
        ("/logs/slurm-38193.out", None, None, None),
        ("/logs/ranking.log", None, None, None),
    ],
)
def test_a_path_may_name_its_rank_or_node(
    path: str, rank: int | None, local_rank: int | None, node: str | None
) -> None:
    """As launchers lay their files out."""
    said = origin_from_path(path)
    assert (said.rank, said.local_rank, said.node) == (rank, local_rank, node)
