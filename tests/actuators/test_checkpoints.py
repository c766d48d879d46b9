"""Checkpoints as their libraries write them, then cut, emptied and interrupted."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobwatchdog.actuators.checkpoints import last_good, list_checkpoints
from jobwatchdog.actuators.checkpoints.choose import check
from jobwatchdog.actuators.checkpoints.info import step_of

# In CI a missing PyTorch is a failure, not a skip.
torch: Any = importlib.import_module("torch") if os.environ.get("CI") else pytest.importorskip("torch")


def state(step: int = 1) -> dict[str, Any]:
    """Something like a model with its optimiser."""
    return {"model": {"w": torch.arange(4096.0), "b": torch.ones(16)}, "optimizer": {"lr": 0.1}, "step": step}


def save(path: Path, at: float, step: int = 1, **more: Any) -> Path:
    """A torch.save file finished at the given second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state(step) | more, path)
    os.utime(path, (at, at))
    return path


def cut(path: Path, keep: float = 0.5) -> None:
    """As a full disk or a killed writer leaves it; the time stays."""
    stat = path.stat()
    os.truncate(path, int(stat.st_size * keep))
    os.utime(path, (stat.st_atime, stat.st_mtime))


def test_newest_whole_file_is_taken_and_the_cut_one_is_named(tmp_path: Path) -> None:
    """The reason says which file and what is wrong with it."""
    save(tmp_path / "step-000010.pt", 100, 10)
    good = save(tmp_path / "step-000020.pt", 200, 20)
    cut(save(tmp_path / "step-000030.pt", 300, 30))
    choice = last_good(tmp_path)
    assert (choice.path, choice.step) == (good, 20)
    assert [path.name for path, _ in choice.passed_over] == ["step-000030.pt"]
    assert "cut off" in choice.passed_over[0][1]


def test_fault_step_and_fault_time_bound_the_choice(tmp_path: Path) -> None:
    """By step where the name states it, else by the time at which it was finished."""
    for step in (10, 20, 30):
        save(tmp_path / f"step-{step}.pt", step * 10, step)
    assert last_good(tmp_path, before_step=30).step == 20
    assert last_good(tmp_path, before_step=25, before_s=0).step == 20  # the step is the better witness
    for step in (10, 20, 30):
        (tmp_path / f"step-{step}.pt").rename(tmp_path / f"{'abc'[step // 10 - 1]}.pt")
    choice = last_good(tmp_path, before_s=250, before_step=1)
    assert choice.path == tmp_path / "b.pt"
    assert "50.0 s after the fault began" in choice.passed_over[0][1]
    assert last_good(tmp_path, before_s=50).path is None


def test_files_of_an_abandoned_future_are_older_in_time(tmp_path: Path) -> None:
    """After a rollback to 20 the newest file is the one of the new run, though its step is lower."""
    save(tmp_path / "step-40.pt", 100, 40)
    save(tmp_path / "step-30.pt", 200, 30)
    assert last_good(tmp_path).step == 30


@pytest.mark.parametrize(
    "name", ["step-30.pt.tmp", ".step-30.pt.tmp", "tmp-step-30.pt", "step-30.pt.tmp.4711", "step-30_tmp.pt"]
)
def test_temporary_names_are_unfinished_not_broken(tmp_path: Path, name: str) -> None:
    """Their writer renames them when they are whole."""
    save(tmp_path / "step-20.pt", 100)
    save(tmp_path / name, 200)
    listed = {info.path.name: info for info in list_checkpoints(tmp_path)}
    assert last_good(tmp_path).step == 20
    assert name not in listed or listed[name].unfinished


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_no_cut_of_a_torch_file_passes(tmp_path: Path, keep: float) -> None:
    """The directory lies at the end of the file: any cut loses it."""
    path = save(tmp_path / "a.pt", 1)
    cut(path, keep)
    assert not check(path).complete


def test_deep_look_finds_a_flipped_byte(tmp_path: Path) -> None:
    """The quick look reads directory and pickle; only the deep one reads the tensors."""
    path = save(tmp_path / "a.pt", 1)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda entry: entry.file_size)
    raw[record.header_offset + 4096] ^= 1
    path.write_bytes(raw)
    assert check(path).complete
    assert "CRC" in (check(path, deep=True).problem or "")


def test_code_in_a_checkpoint_never_runs(tmp_path: Path) -> None:
    """A pickle that would write a file when loaded."""

    class Bomb:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/ran",)

    path = tmp_path / "step-1" / "mp_rank_00_model_states.pt"
    save(path, 1, bomb=Bomb())
    folder = tmp_path / "step-2"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Bomb()))
    (folder / "__0_0.distcp").write_bytes(b"x")
    assert len(list_checkpoints(tmp_path, deep=True)) == 2
    assert not (tmp_path / "ran").exists()


def test_old_style_pickle_files_are_judged_too(tmp_path: Path) -> None:
    """PyTorch before 1.6 wrote a row of pickles and raw storages."""
    path = tmp_path / "step-5.pth"
    torch.save(state(), path, _use_new_zipfile_serialization=False)
    assert check(path).complete
    os.truncate(path, 60)
    assert not check(path).complete


# ---- torch.distributed.checkpoint -------------------------------------------------------------------


@pytest.fixture
def dcp_folder(tmp_path: Path) -> Path:
    """A real one; the library warns that it saves in a single process, which is what we want."""
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")

    folder = tmp_path / "step-100"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": state()["model"]}, checkpoint_id=str(folder), no_dist=True)
    return folder


def test_distributed_checkpoint_is_whole_or_not(dcp_folder: Path) -> None:
    """Metadata missing: unfinished. A shard missing or short: broken, and named."""
    found = check(dcp_folder, deep=True)
    assert (found.complete, found.format, found.step) == (True, "dcp", 100)
    shard = next(dcp_folder.glob("*.distcp"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    assert "is cut off" in (check(dcp_folder).problem or "")
    shard.unlink()
    assert f"{shard.name} is missing" in (check(dcp_folder).problem or "")
    shard.write_bytes(whole)
    metadata = dcp_folder / ".metadata"
    cut(metadata)
    assert "damaged" in (check(dcp_folder).problem or "")
    metadata.unlink()
    assert check(dcp_folder).unfinished


# ---- safetensors and Hugging Face -------------------------------------------------------------------


def hf(folder: Path, step: int) -> Path:
    """checkpoint-N with two shards, optimiser and random state."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        save_file({f"layer{i}": torch.arange(512.0)}, str(folder / name))
    index = {"weight_map": {f"layer{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(state(), folder / "optimizer.pt")
    torch.save(state(), folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return folder


def test_hugging_face_folder_needs_every_part(tmp_path: Path) -> None:
    """Take away one part after the other; each is named."""
    pristine = hf(tmp_path / "checkpoint-500", 500)
    assert (check(pristine).complete, check(pristine).step) == (True, 500)
    damages: dict[str, Callable[[Path], None]] = {
        "model-00002-of-00002.safetensors": lambda f: (f / "model-00002-of-00002.safetensors").unlink(),
        "model-00001-of-00002.safetensors is cut off": lambda f: cut(f / "model-00001-of-00002.safetensors"),
        "optimizer.pt is missing": lambda f: (f / "optimizer.pt").unlink(),
        "optimizer.pt is cut off": lambda f: cut(f / "optimizer.pt"),
        "trainer_state.json is cut off": lambda f: cut(f / "trainer_state.json"),
        "trainer_state.json is missing": lambda f: (f / "trainer_state.json").unlink(),
    }
    for number, (words, damage) in enumerate(damages.items(), start=501):
        folder = Path(shutil.copytree(pristine, tmp_path / f"checkpoint-{number}"))
        damage(folder)
        assert words in (check(folder).problem or "")
    assert last_good(tmp_path).step == 500
    assert len(last_good(tmp_path).passed_over) >= len(damages) - 1  # without its last file one looks older


def test_safetensors_file_is_measured_against_its_header(tmp_path: Path) -> None:
    """Cut anywhere, or a header that lies."""
    from safetensors.torch import save_file

    path = tmp_path / "step-7.safetensors"
    save_file({"w": torch.arange(512.0)}, str(path), metadata={"step": "7"})
    assert (check(path).complete, check(path).step) == (True, 7)
    whole = path.read_bytes()
    for length in (0, 4, 8, 50, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert not check(path).complete
    path.write_bytes(b"\xff" * 8 + whole[8:])
    assert "header claims" in (check(path).problem or "")


# ---- Megatron, DeepSpeed, NeMo ----------------------------------------------------------------------


def test_megatron_save_beyond_the_tracker_did_not_finish(tmp_path: Path) -> None:
    """The tracker file is written last."""
    for step in (100, 200):
        for tp in (0, 1):
            save(tmp_path / f"iter_{step:07d}" / f"mp_rank_{tp:02d}" / "model_optim_rng.pt", step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    choice = last_good(tmp_path)
    assert choice.step == 100
    assert "says 100" in choice.passed_over[0][1]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("200")
    assert last_good(tmp_path).step == 200
    shutil.rmtree(tmp_path / "iter_0000200" / "mp_rank_00")
    assert "1 of 2 folders" in last_good(tmp_path).passed_over[0][1]


def test_deepspeed_counts_its_shards_by_the_stated_world(tmp_path: Path) -> None:
    """The last rank's missing shard leaves no hole in the numbers; the model file says how many there were."""
    for step in (10, 20):
        folder = tmp_path / f"global_step{step}"
        save(folder / "mp_rank_00_model_states.pt", step, dp_world_size=4, mp_world_size=1)
        for rank in range(4):
            save(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", step)
    assert (last_good(tmp_path).step, check(tmp_path / "global_step20").format) == (20, "deepspeed")
    (tmp_path / "global_step20" / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    choice = last_good(tmp_path)
    assert choice.step == 10
    assert "data-parallel rank 3" in choice.passed_over[0][1]


def test_nemo_marker_beside_a_checkpoint_means_unfinished(tmp_path: Path) -> None:
    """NeMo keeps `…-unfinished` beside it until all ranks have saved."""
    save(tmp_path / "model--val_loss=2.10-step=100-consumed_samples=1000.0.ckpt", 100)
    save(tmp_path / "model--val_loss=2.00-step=200-consumed_samples=2000.0.ckpt", 200)
    (tmp_path / "model--val_loss=2.00-step=200-consumed_samples=2000.0.ckpt-unfinished").touch()
    choice = last_good(tmp_path)
    assert choice.step == 100
    assert "-unfinished is beside it" in choice.passed_over[0][1]


def test_links_missing_folders_and_strangers_are_no_checkpoints(tmp_path: Path) -> None:
    """Nothing to choose from is an answer, not an error."""
    assert last_good(tmp_path / "nowhere").path is None
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "latest.pt").symlink_to("gone.pt")
    assert list_checkpoints(tmp_path) == []
    assert not check(tmp_path / "nowhere").complete
    assert "no checkpoint" in (check(tmp_path / "notes.txt").problem or "")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("iter_0001200", 1200), ("global_step20", 20), ("checkpoint-500", 500), ("step-000020", 20),
        ("epoch=1-step=1000", 1000), ("ep0-ba100-rank0", 100), ("1200", 1200), ("model-00001-of-00003", None),
        ("final", None), ("model--val_loss=2.10-step=300-consumed_samples=9.0-last", 300),
    ],
)  # fmt: skip
def test_steps_are_read_from_the_names_that_frameworks_give(name: str, step: int | None) -> None:
    """None is better than a number that means something else."""
    assert step_of(name) == step
