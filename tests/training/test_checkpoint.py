import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.store.files import HASH_LIST, new_folder
from dflash_pipeline.training.checkpoint import (
    CheckpointState,
    checkpoint_name,
    copied_tensors,
    list_checkpoints,
    load_checkpoint,
    newest_whole_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from dflash_pipeline.training.meter import EpochMeter
from dflash_pipeline.training.spikes import judge, no_history
from tests.tiny_models import tiny_config

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 3), float(step + 1))).square().sum().backward()
        optimizer.step()
    return model, optimizer


def state_at(step: int) -> CheckpointState:
    spikes = no_history(2)
    for number in range(step):
        _, spikes = judge(spikes, loss=1 / (number + 3), bucket=number % 2)
    position = Position(epoch=1, step=step)
    return CheckpointState(
        run="r",
        plan="p",
        snapshot="s",
        position=position,
        global_step=step,
        attempt=2,
        spikes=spikes,
        meter=EpochMeter(epoch=1, num_steps=step, loss_sum=step / 3, seconds=0.1),
        skipped_in_a_row=0,
        drafter=tiny_config(),
        objective=Objective(weighting="dpace", decay=4.0),
    )


def save(folder: Path, step: int) -> Path:
    return save_checkpoint(folder, state_at(step), copied_tensors(*trained(step)))


def whole(folder: Path, *names: str) -> None:
    for name in names:
        with new_folder(folder / name, act="checkpoint") as fresh:
            (fresh / "state.json").write_text("{}")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_is_loaded_is_what_was_saved_to_the_last_bit(tmp_path):
    model, optimizer = trained(5)
    path = save_checkpoint(tmp_path, state_at(5), copied_tensors(model, optimizer))
    fresh, empty = trained(0)
    assert load_checkpoint(path, fresh, empty) == state_at(5)
    for (name, saved), loaded in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(saved, loaded), name
        before, after = optimizer.state[saved], empty.state[loaded]
        assert before.keys() == after.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_checkpoint_before_the_first_update_loads(tmp_path):
    """Every loss so far was not finite: there are no moments yet."""
    path = save_checkpoint(tmp_path, state_at(1), copied_tensors(*trained(0)))
    model, optimizer = trained(0)
    load_checkpoint(path, model, optimizer)
    assert not optimizer.state


def test_it_holds_no_pickle(tmp_path):
    path = save(tmp_path, 3)
    assert names_in(path) == {*FILES, HASH_LIST}
    assert json.loads((path / "state.json").read_text())["global_step"] == 3


def test_saving_a_step_again_changes_nothing(tmp_path):
    path = save(tmp_path, 3)
    before = {file: file.stat().st_mtime_ns for file in path.iterdir()}
    assert save(tmp_path, 3) == path
    assert {file: file.stat().st_mtime_ns for file in path.iterdir()} == before


def test_a_damaged_one_of_the_same_step_is_kept_beside_the_new(tmp_path):
    path = save(tmp_path, 3)
    (path / "state.json").write_text("half")
    save(tmp_path, 3)
    assert newest_whole_checkpoint(tmp_path) == path
    assert names_in(tmp_path) == {"step_0000003", "step_0000003.damaged-1"}
    assert (tmp_path / "step_0000003.damaged-1" / "state.json").read_text() == "half"


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, empty, Path.unlink])
def test_a_damaged_one_is_named_and_left_and_the_one_before_is_used(tmp_path, caplog, name, damage):
    good, torn = save(tmp_path, 9), save(tmp_path, 10)
    damage(torn / name)
    left = names_in(torn)
    with caplog.at_level(logging.WARNING):
        assert newest_whole_checkpoint(tmp_path) == good
    [message] = caplog.messages
    assert torn.name in message
    assert name in message
    assert names_in(torn) == left


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink])
def test_a_hash_list_that_does_not_hold_is_a_damage_too(tmp_path, damage):
    good, torn = save(tmp_path, 9), save(tmp_path, 10)
    damage(torn / HASH_LIST)
    assert newest_whole_checkpoint(tmp_path) == good


def test_the_hash_list_of_another_checkpoint_is_none(tmp_path):
    good, torn = save(tmp_path, 9), save(tmp_path, 10)
    shutil.copy(good / HASH_LIST, torn / HASH_LIST)
    assert newest_whole_checkpoint(tmp_path) == good


def test_leftover_temporary_names_are_not_checkpoints(tmp_path):
    good = save(tmp_path, 9)
    shutil.copytree(good, tmp_path / ".step_0000010.123.incomplete")
    shutil.copytree(good, tmp_path / "step_0000011.incomplete")
    (tmp_path / "step_0000012").write_text("a file, not a folder")
    assert newest_whole_checkpoint(tmp_path) == good


def test_none_at_all(tmp_path):
    assert newest_whole_checkpoint(tmp_path) is None
    assert newest_whole_checkpoint(tmp_path / "absent") is None


@given(st.sets(st.integers(0, 10**9), min_size=1, max_size=6))
def test_the_newest_is_the_largest_number_however_it_is_written(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("names")
    for number in numbers:
        (folder / (checkpoint_name(number) if number % 2 else f"step_{number}")).mkdir()
    found = [int(path.name.removeprefix("step_")) for path in list_checkpoints(folder)]
    assert found == sorted(numbers, reverse=True)


@pytest.mark.parametrize("keep", [0, -2])
def test_keeping_none_is_refused(tmp_path, keep):
    save(tmp_path, 9)
    with pytest.raises(Refused, match=f"keep_checkpoints {keep}"):
        prune_checkpoints(tmp_path, keep=keep)
    assert newest_whole_checkpoint(tmp_path)


def test_damaged_ones_are_never_removed_and_never_counted(tmp_path):
    whole(tmp_path, "step_1", "step_2", "step_3", "step_5")
    for name in ("step_4", "step_6", "step_7"):
        (tmp_path / name).mkdir()
    prune_checkpoints(tmp_path, keep=2)
    assert names_in(tmp_path) == {"step_3", "step_5", "step_4", "step_6", "step_7"}
