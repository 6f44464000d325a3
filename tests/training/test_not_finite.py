"""Losses that are not finite: skipped alike by all, counted, and the end of the run when they go on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_pipeline.contracts.errors import Failed
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import train, write_toy


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=LENGTHS, spec=SPEC, epochs=2)


def poisoned(*steps: int):
    """Weights of these steps of the first epoch are infinite."""

    def watch(trainer):
        collate = trainer.collate

        def spoil(micro_batch):
            prepared = collate(micro_batch)
            if micro_batch.epoch == 0 and micro_batch.step in steps:
                return replace(prepared, weights=prepared.weights * torch.inf)
            return prepared

        trainer.collate = spoil

    return watch


def test_three_in_a_row_are_skipped(toy, tmp_path):
    run = train(toy, run_dir=tmp_path, watch=poisoned(1, 2, 3))
    assert run.outcome.finished
    losses = [record.loss for record in run.recorder.steps]
    assert [i for i, loss in enumerate(losses) if not np.isfinite(loss)] == [1, 2, 3]
    assert [record.global_step for record in run.recorder.spikes][:3] == [2, 3, 4]
    finite = [record.loss for record in run.recorder.steps if record.epoch == 0 and np.isfinite(record.loss)]
    assert run.recorder.epochs[0].mean_loss == pytest.approx(np.mean(finite))


def test_a_fourth_ends_the_run_and_names_its_step(toy, tmp_path):
    with pytest.raises(Failed, match=r"epoch 0 step 4: .*not finite in 4 steps in a row"):
        train(toy, run_dir=tmp_path, watch=poisoned(1, 2, 3, 4))


def test_they_are_counted_across_a_resume(toy, tmp_path):
    assert not train(toy, run_dir=tmp_path, stop_after=4, watch=poisoned(1, 2, 3, 4)).outcome.finished
    with pytest.raises(Failed, match="epoch 0 step 4"):
        train(toy, run_dir=tmp_path, watch=poisoned(1, 2, 3, 4))


def test_a_finite_one_between_them_starts_the_count_again(toy, tmp_path):
    assert train(toy, run_dir=tmp_path, watch=poisoned(0, 1, 2, 4, 5, 6)).outcome.finished
