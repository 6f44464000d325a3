"""Killed after any step whatever, a run ends as if nothing had happened, and trains each sample once an epoch."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.training.checkpoint import checkpoint_name, list_checkpoints
from dflash_pipeline.training.settings import Saving
from tests.training.test_loop import LENGTHS as ALL_LENGTHS
from tests.training.test_loop import SPEC, same_bits
from tests.training.toy_run import Trained, plan_of, train, write_toy

LENGTHS = ALL_LENGTHS[:16]
"""Few steps: each is resumed from, to the end."""
DPACE = Objective(weighting="dpace", decay=2.0)


@pytest.fixture(scope="module", params=["shuffle", "varlen", "window"])
def toy(request, tmp_path_factory):
    """Saves after every step: what stands on disk is what a kill after any step leaves behind."""
    spec = replace(SPEC, strategy=request.param)
    config = write_toy(tmp_path_factory.mktemp("toy"), lengths=LENGTHS, spec=spec, epochs=3)
    objective = DPACE if request.param == "varlen" else config.settings.objective
    return replace(
        config, saving=Saving(keep=-1, every_steps=1), settings=replace(config.settings, objective=objective)
    )


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory) -> Trained:
    return train(toy, run_dir=tmp_path_factory.mktemp("whole"))


def test_there_is_a_checkpoint_after_every_step(toy, whole):
    saved = list_checkpoints(Path(whole.trainer.config.run_dir) / "checkpoints")
    assert [path.name for path in saved][::-1] == [
        checkpoint_name(step) for step in range(1, plan_of(toy).total_steps + 1)
    ]


def test_resumed_from_any_step_it_is_the_uninterrupted_run_bit_for_bit(toy, whole, tmp_path):
    plan = plan_of(toy)
    for step in range(1, plan.total_steps):
        run_dir = tmp_path / str(step)
        saved = Path(whole.trainer.config.run_dir) / "checkpoints" / checkpoint_name(step)
        shutil.copytree(saved, run_dir / "checkpoints" / saved.name)
        again = train(replace(toy, saving=Saving(keep=1)), run_dir=run_dir)
        assert again.outcome.first_step == step
        assert again.recorder.losses == whole.recorder.losses[step:]
        assert same_bits(again.weights, whole.weights)
        means = [epoch.mean_loss for epoch in whole.recorder.epochs]
        assert [epoch.mean_loss for epoch in again.recorder.epochs] == means[-len(again.recorder.epochs) :]
        shutil.rmtree(run_dir)


def test_stopped_twice_within_an_epoch_each_sample_is_trained_once_an_epoch(toy, tmp_path):
    plan = plan_of(toy)
    first = plan.epochs[0].num_steps
    trained: dict[int, list[int]] = {epoch: [] for epoch in range(3)}

    def watch(trainer):
        accumulate = trainer._steps

        def steps(manifest, at):
            for prepared, *rest in accumulate(manifest, at):
                real = [b.source for b in prepared.batches if not b.source.filler]
                trained[manifest.epoch] += [i for source in real for i in source.sample_ids.tolist()]
                yield prepared, *rest

        trainer._steps = steps

    for stop in (first + 1, first + 2, first + plan.epochs[1].num_steps, None):
        train(toy, run_dir=tmp_path, stop_after=stop, watch=watch)
    for epoch in range(3):
        assert sorted(trained[epoch]) == list(range(len(LENGTHS)))


@pytest.mark.parametrize(
    ("section", "change", "named"),
    [
        ("drafter", {"mask_token_id": 3}, r"drafter\.mask_token_id 60, now 3"),
        ("drafter", {"tap_layer_ids": (0,)}, r"drafter\.tap_layer_ids \(0, 1\), now \(0,\)"),
        ("drafter", {"block_size": 5}, r"drafter\.block_size 4, now 5"),
        ("objective", {"decay": 3.0}, r"objective\.decay 2\.0, now 3\.0"),
    ],
)
def test_what_must_not_change_is_refused_by_name(tmp_path, section, change, named):
    """Only a checkpoint that somebody moved can differ: such settings are part of a run's name."""
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=1)
    train(toy, run_dir=tmp_path / "run", stop_after=1)
    if section == "drafter":
        changed = replace(toy, drafter=replace(toy.drafter, **change))
    else:
        objective = replace(toy.settings.objective, **change)
        changed = replace(toy, settings=replace(toy.settings, objective=objective))
    with pytest.raises(Refused, match=named):
        train(changed, run_dir=tmp_path / "run")


def test_a_limit_on_steps_ends_with_a_checkpoint_at_that_step(tmp_path):
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=2)
    whole = train(toy, run_dir=tmp_path / "whole")
    limited = train(replace(toy, max_steps=3), run_dir=tmp_path / "run")
    assert (limited.outcome.last_step, limited.outcome.finished, limited.outcome.asked_to_stop) == (3, False, False)
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == [checkpoint_name(3)]
    assert train(replace(toy, max_steps=3), run_dir=tmp_path / "run").recorder.steps == []
    with pytest.raises(
        Refused, match=r"training\.max_steps: the run stands at step 3 of \d+ already; raise it above 3"
    ):
        train(replace(toy, max_steps=2), run_dir=tmp_path / "run")
    rest = train(toy, run_dir=tmp_path / "run")
    # The learning rate looked to the plan's end all along.
    assert limited.recorder.losses + rest.recorder.losses == whole.recorder.losses
    assert all(torch.equal(rest.weights[name], whole.weights[name]) for name in whole.weights)


def test_without_a_whole_checkpoint_it_says_that_it_starts_over(tmp_path, caplog):
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=1)
    train(toy, run_dir=tmp_path / "run", stop_after=2)
    [saved] = list_checkpoints(tmp_path / "run" / "checkpoints")
    (saved / "state.json").write_text("half")
    again = train(toy, run_dir=tmp_path / "run", stop_after=1)
    assert again.outcome.first_step == 0
    assert "no checkpoint of 1 is whole: the run starts over at its first step" in caplog.text
