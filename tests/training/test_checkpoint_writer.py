"""Checkpoints beside the steps: taken when asked for, written in order, and never lost in silence."""

import threading
from dataclasses import replace

import pytest
import torch

from dflash_pipeline.training import checkpoint_writer
from dflash_pipeline.training.checkpoint import list_checkpoints, load_checkpoint
from dflash_pipeline.training.checkpoint_writer import CheckpointWriter
from dflash_pipeline.training.saving import SaveClock
from dflash_pipeline.training.settings import Saving
from tests.training.test_checkpoint import state_at, trained
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import train, write_toy


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """No checkpoint reaches the disk before this is set."""
    go = threading.Event()
    save = checkpoint_writer.save_checkpoint
    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", lambda *inputs: go.wait(30) and save(*inputs))
    return go


def test_what_is_written_is_what_was_when_it_was_asked_for(tmp_path, held):
    writer = CheckpointWriter(tmp_path, keep=-1)
    model, optimizer = trained(2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    writer.save(state_at(2), model, optimizer)
    assert list_checkpoints(tmp_path) == []  # It came back without waiting for the disk.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    held.set()
    writer.wait()
    again, fresh = trained(0)
    load_checkpoint(list_checkpoints(tmp_path)[0], again, fresh)
    assert all(torch.equal(tensor, before[name]) for name, tensor in again.state_dict().items())


def test_the_next_waits_for_the_one_before(tmp_path, held):
    writer = CheckpointWriter(tmp_path, keep=-1)
    writer.save(state_at(1), *trained(1))
    second = threading.Thread(target=writer.save, args=(state_at(2), *trained(2)))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    held.set()
    second.join()
    writer.wait()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_0000002", "step_0000001"]


def test_a_failure_is_raised_at_the_next_call(tmp_path, monkeypatch):
    def full(*_inputs):
        raise OSError("the disk is full")

    writer = CheckpointWriter(tmp_path, keep=-1)
    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", full)
    writer.save(state_at(1), *trained(1))
    with pytest.raises(OSError, match="the disk is full"):
        writer.save(state_at(2), *trained(2))
    writer.wait()  # Told once.


def test_a_run_whose_checkpoint_cannot_be_written_fails(tmp_path, monkeypatch):
    def full(*_inputs):
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", full)
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=1)
    with pytest.raises(OSError, match="the disk is full"):
        train(toy, run_dir=tmp_path / "run")


def test_they_are_due_by_steps_and_by_time():
    time = [0.0]
    clock = SaveClock(Saving(keep=1, every_steps=3, every_minutes=2.0), now=lambda: time[0])
    assert [clock.is_due() for _ in range(4)] == [False, False, True, True]
    clock.saved()
    assert [clock.is_due() for _ in range(2)] == [False, False]
    time[0] = 120.0
    assert clock.is_due()
    clock.saved()
    assert not clock.is_due()
    never = SaveClock(Saving(keep=1), now=lambda: time[0])
    time[0] = 1e9
    assert not any(never.is_due() for _ in range(1000))


def test_a_run_saves_every_so_many_steps_and_at_the_end_of_every_epoch(tmp_path):
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=1)
    run = train(replace(toy, saving=Saving(keep=-1, every_steps=4)), run_dir=tmp_path / "run")
    saved = [int(path.name.removeprefix("step_")) for path in list_checkpoints(tmp_path / "run" / "checkpoints")]
    last = run.outcome.last_step
    assert saved == sorted({*range(4, last, 4), last}, reverse=True)
