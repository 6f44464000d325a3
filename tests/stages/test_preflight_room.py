"""Disk, memory, devices and ports: what a machine lacks is said with the numbers, and what it has is measured."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash_pipeline.model.zlab_json import zlab_tensor_shapes
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.preflight import Machine, look_over
from dflash_pipeline.stages.preflight import machine as machine_module
from dflash_pipeline.stages.preflight.machine import control_group_room, gib, this_machine
from dflash_pipeline.store.layout import Storage
from tests.stages.preflight_cases import ROOMY, faults, recipe

CUDA = {"device": "cuda"}


@pytest.mark.parametrize(
    ("lacking", "training", "where", "what"),
    [
        ({"free_disk": 2**20}, {}, "storage", "0.00098 GiB are free, and at least 0."),
        ({"storage_error": "Read-only file system"}, {}, "storage", "cannot be written: Read-only file system"),
        ({"free_memory": 2**20}, {}, "training.num_ranks", "2 processes need at least 0.0"),
        ({"port_error": "denied"}, {}, "127.0.0.1", "no port can be had"),
        ({"free_shared_memory": None}, {}, "/dev/shm", "it is not there"),
        ({"free_shared_memory": 2**20}, {}, "/dev/shm", "0.00098 GiB are free, and 0.016 GiB"),
        ({"device_memory": ()}, CUDA, "training.device", "no CUDA device is visible"),
        ({"device_memory": (2**40,)}, CUDA, "training.num_ranks", "2 ranks for 1 CUDA devices"),
        ({"device_memory": (2**40, 2**20)}, CUDA, "training.num_ranks", "at least 0.0"),
        ({"device_memory": (2**40, 2**40), "free_shared_memory": 2**26}, CUDA, "/dev/shm", "0.12 GiB are needed"),
    ],
)
def test_what_the_machine_lacks(
    tmp_path: Path, lacking: dict[str, Any], training: dict[str, Any], where: str, what: str
) -> None:
    found = faults(tmp_path, machine=replace(ROOMY, **lacking), training=training)
    # Evaluation needs nearly as much memory as training, and may say so too.
    assert [fault.where for fault in found if fault.where != "evaluation.num_processes"] in (
        [where],
        [f"{tmp_path}/{where}"],
    )
    assert what in found[0].what


def test_a_machine_of_the_right_size_has_no_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, machine=replace(ROOMY, device_memory=(2**40,) * 2), training=CUDA) == ()
    small = replace(ROOMY, free_disk=2**28, free_memory=2**28, free_shared_memory=2**25)
    assert faults(tmp_path, machine=small) == ()


def needed(folder: Path, storage: Storage, **sections: dict[str, Any]) -> float:
    """GiB of disk, as the one fault of a full disk says."""
    found = look_over(recipe(folder, **sections), storage, machine=replace(ROOMY, free_disk=0))
    [fault] = found.faults
    return float(fault.what.partition("at least ")[2].split()[0])


def test_the_disk_that_is_needed_follows_the_recipe(tmp_path: Path) -> None:
    storage = Storage(root=tmp_path / "storage")
    wide = {"intermediate_size": 60_000}
    least = needed(tmp_path, storage, drafter=wide)
    more = needed(tmp_path, storage, drafter=wide, training={"keep_checkpoints": 20})
    every = needed(tmp_path, storage, drafter=wide, training={"keep_checkpoints": -1}, batching={"epochs": 20})
    # Weights and two moments of 18 checkpoints more.
    shapes = zlab_tensor_shapes(recipe_drafter(recipe(tmp_path, drafter=wide)))
    weights = 4 * sum(math.prod(shape) for shape in shapes.values())
    assert (more - least) * 2**30 == pytest.approx(18 * 3 * weights, rel=0.05)
    assert every == pytest.approx(more, rel=0.1)


def test_the_first_rows_tell_how_much_all_of_them_take(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": "A number, and a rather long one. " * 20} for n in range(200)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    size = (tmp_path / "rows.jsonl").stat().st_size
    data = {"sources": [{"path": "rows.jsonl"}], "max_rows": None}
    storage = Storage(root=tmp_path / "storage")
    few = needed(tmp_path, storage, data=data)
    (tmp_path / "rows.jsonl").write_text(((tmp_path / "rows.jsonl").read_text()) * 2000)
    many = needed(tmp_path, storage, data=data)
    # Texts once more in the warehouse; of tokens, four bytes each.
    assert 1.2 * 1999 * size < (many - few) * 2**30 < 4 * 1999 * size
    assert needed(tmp_path, storage, data=data | {"max_rows": 200}) == few
    often = needed(tmp_path, storage, data=data | {"sources": [{"path": "rows.jsonl", "weight": 3}]})
    assert many + 0.3 * (many - few) < often < many + 2 * (many - few)

    keep(storage.record("tiny", "conversations"), "{}")
    storage.warehouse.touch()
    os.truncate(storage.warehouse, 2**27)
    assert needed(tmp_path, storage, data=data) == pytest.approx(many - 0.125, abs=0.02)
    keep(storage.record("tiny", "token_sequences"), '{"fingerprint": "0123"}')
    (storage.snapshots / "0123").mkdir(parents=True)
    (storage.snapshots / "0123" / "tokens-00000.arrow").touch()
    os.truncate(storage.snapshots / "0123" / "tokens-00000.arrow", 2**27)
    assert needed(tmp_path, storage, data=data) == pytest.approx(many - 0.25, abs=0.02)
    (tmp_path / "rows.jsonl").unlink()  # Hundreds of megabytes.


def keep(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_number_of_rows_is_a_files(tmp_path: Path) -> None:
    storage = Storage(root=tmp_path / "storage")
    row = json.dumps({"question": "What is it?", "answer": "A number, and a rather long one. " * 20}) + "\n"
    for name in ("a", "b"):
        keep(tmp_path / "rows" / f"{name}.jsonl", row * 100_000)
    one = needed(tmp_path, storage, data={"sources": [{"path": "rows/a.jsonl"}], "max_rows": 50_000})
    both = needed(tmp_path, storage, data={"sources": [{"path": "rows"}], "max_rows": 50_000})
    nothing = needed(tmp_path, storage, data={"sources": [{"path": "rows/a.jsonl"}], "max_rows": 1})
    assert both - nothing == pytest.approx(2 * (one - nothing), rel=0.1)


def test_every_process_holds_a_target(tmp_path: Path) -> None:
    """Of 3.7 MB; drafter, gradients and moments take 1.8 MB more."""
    [fault] = faults(tmp_path, machine=replace(ROOMY, free_memory=2**23))
    assert (fault.where, fault.what[:11]) == ("training.num_ranks", "2 processes")
    assert faults(tmp_path, machine=replace(ROOMY, free_memory=2**23), training={"num_ranks": 1}) == ()
    # On the way to a device it is the target alone.
    devices = replace(ROOMY, free_memory=2**23, device_memory=(2**40,) * 2)
    assert faults(tmp_path, machine=devices, training=CUDA) == ()


@pytest.mark.parametrize(
    ("drafter", "target", "room"),
    [("ddp", "none", 3.56e6), ("fsdp", "none", 2.70e6), ("ddp", "fsdp", 2.77e6), ("fsdp", "fsdp", 1.91e6)],
)
def test_parts_take_less_of_a_device(tmp_path: Path, drafter: str, target: str, room: float) -> None:
    """Of the target's 918,912 weights 787,712 are in its layers; the drafter has 107,072, times four.

    On a device the target takes two bytes a weight.
    """
    training = CUDA | {"drafter_sharding": drafter, "target_sharding": target}

    def where(num_bytes: float) -> list[str]:
        devices = replace(ROOMY, device_memory=(2**40, int(num_bytes)))  # Evaluation takes the first one.
        return [fault.where for fault in faults(tmp_path, machine=devices, training=training)]

    assert where(room) == []
    assert where(room - 2e4) == ["training.num_ranks"]


def test_in_main_memory_a_target_is_whole_before_it_is_in_parts(tmp_path: Path) -> None:
    parts = {"drafter_sharding": "fsdp", "target_sharding": "fsdp"}
    assert faults(tmp_path, machine=replace(ROOMY, free_memory=7_400_000), training=parts) == ()
    [fault] = faults(tmp_path, machine=replace(ROOMY, free_memory=7_300_000), training=parts)
    assert fault.where == "training.num_ranks"


def test_evaluation_shares_one_device(tmp_path: Path) -> None:
    devices = replace(ROOMY, device_memory=(2**23,) * 2)
    evaluation = {"num_prompts": 3, "num_processes": 3}
    [fault] = faults(tmp_path, machine=devices, training=CUDA, evaluation=evaluation)
    assert fault.where == "evaluation.num_processes"
    assert faults(tmp_path, machine=devices, training=CUDA, evaluation={"num_prompts": 1, "num_processes": 3}) == ()


def test_what_earlier_runs_left_need_not_be_written_again(tmp_path: Path) -> None:
    storage = Storage(root=tmp_path / "storage")
    wide = {"intermediate_size": 60_000}
    before = needed(tmp_path, storage, drafter=wide)
    run = storage.runs / "0123456789abcdef"
    (run / "checkpoints" / "step_0000001").mkdir(parents=True)
    with (run / "checkpoints" / "step_0000001" / "model.safetensors").open("wb") as file:
        os.truncate(file.fileno(), 2**28)
    (run / "launch.json").write_text('{"experiment": "another"}')
    assert needed(tmp_path, storage, drafter=wide) == before
    (run / "launch.json").write_text('{"experiment": "tiny"}')
    assert needed(tmp_path, storage, drafter=wide) == pytest.approx(before - 0.25, abs=0.02)
    (run / "launch.json").write_text("torn")
    assert needed(tmp_path, storage, drafter=wide) == before


def test_this_machine_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = this_machine(Storage(root=tmp_path / "not" / "yet"), device="cpu")
    assert (found.storage_error, found.port_error, found.device_memory) == (None, None, ())
    assert 0 < found.free_memory <= psutil.virtual_memory().total
    assert found.free_disk > 0
    assert list(tmp_path.iterdir()) == []


def test_the_smaller_of_two_limits_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "control_group_room", lambda mount, membership: 5)
    assert this_machine(Storage(root=tmp_path), device="cpu").free_memory == 5


@pytest.mark.parametrize("place", ["file", "file/below", "x" * 300])
def test_a_storage_folder_that_cannot_be(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    found = this_machine(Storage(root=tmp_path / place), device="cpu")
    assert found.storage_error
    assert isinstance(found, Machine)


def group(folder: Path, limit: str, used: int, cached: int, names: tuple[str, str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit_name, used_name, cached_name = names
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / used_name).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{cached_name} {cached}\n")


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def test_limits_of_control_groups_count(tmp_path: Path) -> None:
    group(tmp_path / "v2" / "a" / "b", "max", 10, 0, V2)
    group(tmp_path / "v2" / "a", "1000", 700, 200, V2)
    assert control_group_room(tmp_path / "v2", "0::/a/b\n") == 500
    group(tmp_path / "v2" / "a" / "b", "300", 400, 0, V2)
    assert control_group_room(tmp_path / "v2", "0::/a/b\n") == 0
    assert control_group_room(tmp_path / "v2", "0::/elsewhere\n") is None
    # Inside a container: the path is the host's, the files are at the mount.
    group(tmp_path / "inside", "1000", 100, 0, V2)
    assert control_group_room(tmp_path / "inside", "0::/docker/0123\n") == 900
    group(tmp_path / "v1" / "memory" / "a", "5000", 1000, 500, V1)
    assert control_group_room(tmp_path / "v1", "3:cpu,cpuacct:/a\n2:memory:/a\n1:name=systemd:/a\n") == 4500
    assert control_group_room(tmp_path / "v1", "") is None


def test_sizes_are_said_in_gib() -> None:
    assert [gib(size) for size in (0, 2**20, 2**30, 3 * 2**29, 2**34, 2**41)] == [
        *("0 GiB", "0.00098 GiB", "1 GiB", "1.5 GiB", "16.0 GiB", "2,048.0 GiB"),
    ]
