"""A run that begins with weights of another: exactly with those, with a new optimiser, and the same when resumed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.evaluation.export import export_drafter
from dflash_pipeline.store.files import file_sha256
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.training.settings import LaunchConfig, Sharding, WarmStart, run_fingerprint
from dflash_pipeline.training.warm_start import first_weights_folder
from tests.training.test_sharding import run_attempts
from tests.training.toy_run import Trained, train, write_toy

LENGTHS = tuple(np.random.default_rng(11).integers(5, 40, 24).tolist())
SPEC = BatchingSpec(strategy="shuffle", token_budget=90, slots_per_step=2, boundaries=(12, 24, 40), seed=3)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> LaunchConfig:
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=LENGTHS, spec=SPEC, epochs=2)


@pytest.fixture(scope="module")
def cold(toy, tmp_path_factory) -> Trained:
    return train(toy, run_dir=tmp_path_factory.mktemp("cold"))


@pytest.fixture(scope="module")
def export(toy, cold, tmp_path_factory) -> Path:
    """The trained drafter, as it is exported."""
    folder = tmp_path_factory.mktemp("exports") / "cold"
    export_drafter(toy.drafter, cold.weights, target_dir=Path(toy.target_dir), out=folder, card="")
    return folder


@pytest.fixture(scope="module")
def start(export) -> WarmStart:
    return WarmStart(run="cold", export="cold", weights=file_sha256(export / "model.safetensors"))


def warm(toy: LaunchConfig, start: WarmStart, export: Path, run_dir: Path) -> LaunchConfig:
    shutil.copytree(export, first_weights_folder(run_dir))
    return replace(toy, warm_start=start, run_dir=str(run_dir))


def test_the_first_step_is_a_forward_with_exactly_those_weights(toy, cold, start, export, tmp_path):
    """The last weights of the cold run, put by hand into a trainer, make the same first step."""
    config = warm(toy, start, export, tmp_path / "warm")
    begun = train(config, run_dir=tmp_path / "warm", stop_after=1)

    def by_hand(trainer):
        assert not trainer.optimizer.state
        trainer.drafter.load_state_dict(cold.weights)

    expected = train(toy, run_dir=tmp_path / "by-hand", stop_after=1, watch=by_hand)
    assert begun.recorder.losses == expected.recorder.losses
    assert begun.recorder.steps[0].loss < cold.recorder.steps[0].loss
    assert begun.recorder.steps[0].learning_rate == cold.recorder.steps[0].learning_rate


def test_weights_are_loaded_to_the_last_bit_and_the_optimiser_is_new(toy, cold, start, export, tmp_path):
    config = warm(toy, start, export, tmp_path / "warm")
    seen: list[dict[str, torch.Tensor]] = []

    def look(trainer):
        assert not trainer.optimizer.state
        assert trainer.start == 0
        seen.append({name: weight.clone() for name, weight in trainer.drafter.state_dict().items()})

    train(config, run_dir=tmp_path / "warm", stop_after=1, watch=look)
    [found] = seen
    assert found.keys() == cold.weights.keys() == load_file(export / "model.safetensors").keys()
    assert all(torch.equal(found[name], weight) for name, weight in cold.weights.items())
    assert {weight.dtype for weight in found.values()} == {torch.float32}


def test_a_resumed_warm_run_is_the_uninterrupted_one(toy, start, export, tmp_path):
    whole = train(warm(toy, start, export, tmp_path / "whole"), run_dir=tmp_path / "whole")
    config = warm(toy, start, export, tmp_path / "parts")
    first = train(config, run_dir=tmp_path / "parts", stop_after=3)
    shutil.rmtree(first_weights_folder(tmp_path / "parts"))  # A checkpoint needs them no more.
    second = train(config, run_dir=tmp_path / "parts")
    assert first.recorder.losses + second.recorder.losses == whole.recorder.losses
    assert all(torch.equal(second.weights[name], weight) for name, weight in whole.weights.items())


def test_a_run_whose_checkpoints_are_all_damaged_begins_with_the_same_weights_again(toy, start, export, tmp_path):
    config = warm(toy, start, export, tmp_path)
    first = train(config, run_dir=tmp_path, stop_after=2)
    for state in (tmp_path / "checkpoints").glob("*/state.json"):
        state.unlink()
    assert train(config, run_dir=tmp_path, stop_after=2).recorder.losses == first.recorder.losses


@pytest.mark.parametrize("what", ["gone", "others"])
def test_other_weights_or_none_are_refused(toy, start, export, tmp_path, what):
    config = warm(toy, start, export, tmp_path)
    path = first_weights_folder(tmp_path) / "model.safetensors"
    if what == "gone":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    with pytest.raises(Refused, match="the weights of champion cold are not here"):
        train(config, run_dir=tmp_path, stop_after=1)


@pytest.mark.slow
def test_two_ranks_begin_alike_whether_the_drafter_is_whole_or_in_parts(toy, start, export, tmp_path):
    alone = train(warm(toy, start, export, tmp_path / "alone"), run_dir=tmp_path / "alone", stop_after=2)
    configs = {name: warm(toy, start, export, tmp_path / name) for name in ("ddp", "fsdp")}
    attempts = [(replace(config, sharding=Sharding(drafter=name)), 2) for name, config in configs.items()]
    expected = [record.loss for record in alone.recorder.steps]
    for found in run_attempts(tmp_path, attempts, num_ranks=2):
        for attempt in found:
            assert attempt["losses"] == pytest.approx(expected, rel=1e-5)


def test_the_first_weights_name_the_run_and_a_cold_one_keeps_its_name(toy, start):
    parts = {"plan": toy.plan, "target": toy.target, "drafter": toy.drafter, "settings": toy.settings}
    assert toy.line.identity(None) == run_fingerprint(**parts)
    other = replace(start, weights="0" * 64)
    names = {toy.line.identity(one) for one in (None, start, other)}
    assert len(names) == 3
    assert toy.line.identity(replace(start, run="another", export="another")) == toy.line.identity(start)


def test_a_record_of_before_warm_starts_is_a_cold_run(toy, tmp_path):
    save_record(tmp_path / "launch.json", toy)
    said = json.loads((tmp_path / "launch.json").read_text())
    del said["warm_start"], said["wanted_start"]
    (tmp_path / "old.json").write_text(json.dumps(said))
    old = load_record(tmp_path / "old.json", LaunchConfig)
    assert old == toy
    assert (old.wanted_start, old.warm_start, old.start_text) == ("scratch", None, "scratch")


def test_a_start_without_a_name_is_no_record():
    for run, weights in (("", "0" * 64), ("a", "0" * 63), ("a", "G" * 64)):
        with pytest.raises(ContractBroken):
            WarmStart(run=run, export="a", weights=weights)
