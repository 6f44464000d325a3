import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_pipeline.contracts.manifest import MicroBatch
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.store.tokens import TokenStore, write_shards
from dflash_pipeline.training.collate import AnchorRule, Collator

SAMPLES = [
    Sample(conversation_id="a", split="train", input_ids=np.arange(10, 20, dtype=np.int32), spans=((2, 5), (7, 10))),
    Sample(conversation_id="b", split="train", input_ids=np.arange(30, 36, dtype=np.int32), spans=((4, 6),)),
    Sample(conversation_id="c", split="train", input_ids=np.arange(50, 53, dtype=np.int32), spans=((2, 3),)),
]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> TokenStore:
    folder: Path = tmp_path_factory.mktemp("tokens")
    return TokenStore(folder, [shard.name for shard in write_shards(folder, SAMPLES)])


def collator(tokens, *, anchors=8, decay=2.0, seed=0):
    return Collator(
        tokens=tokens,
        anchors=AnchorRule(share=1.0, most=anchors, seed=seed),
        block_size=4,
        objective=Objective(weighting="decay", decay=decay),
    )


def micro_batch(*sample_ids, epoch=0, width=12, filler=False):
    return MicroBatch(
        epoch=epoch,
        step=0,
        slot=0,
        sample_ids=np.array(sample_ids),
        padded_length=width,
        num_tokens=1,
        supervised_tokens=1,
        cost=1.0,
        filler=filler,
    )


def test_rows_are_the_samples_right_padded_to_the_planned_length(tokens):
    batch = collator(tokens)(micro_batch(1, 0)).batch
    assert batch.input_ids.tolist() == [[*range(30, 36), *[0] * 6], [*range(10, 20), 0, 0]]
    assert batch.blocks.ends.tolist() == [6] + [12 + 10] * 4
    assert batch.loss_mask.nonzero().tolist() == [[0, 4], [0, 5], [1, 2], [1, 3], [1, 4], [1, 7], [1, 8], [1, 9]]


def test_anchors_are_supervised_tokens_with_a_supervised_successor(tokens):
    batch = collator(tokens)(micro_batch(0, 1)).batch
    assert batch.blocks.anchors.tolist() == [2, 3, 7, 8, 12 + 4]


def test_weights_end_at_the_first_token_without_a_loss(tokens):
    prepared = collator(tokens, decay=2.0)(micro_batch(0))
    later = math.exp(-0.5)
    # Anchors 2, 3, 7, 8: two, one, two and one supervised tokens follow.
    expected = [[0, 1, later, 0], [0, 1, 0, 0], [0, 1, later, 0], [0, 1, 0, 0]]
    torch.testing.assert_close(prepared.weights, torch.tensor(expected))
    assert prepared.weight == pytest.approx(4 + 2 * later, rel=1e-6)
    assert prepared.num_anchors == 4


def test_a_filler_has_the_shapes_of_its_copy_and_no_weight(tokens):
    real, filler = collator(tokens)(micro_batch(0, 1)), collator(tokens)(micro_batch(0, 1, filler=True))
    assert torch.equal(real.batch.input_ids, filler.batch.input_ids)
    assert filler.weights.shape == real.weights.shape
    assert (filler.weight, filler.num_anchors, int(filler.weights.count_nonzero())) == (0.0, 0, 0)


def test_a_sample_without_any_anchor_is_carried_without_weight(tokens):
    prepared = collator(tokens)(micro_batch(2))
    assert (prepared.weight, prepared.num_anchors) == (0.0, 0)
    assert prepared.weights.shape == (1, 4)


def test_it_is_a_function_of_the_micro_batch_and_the_settings(tokens):
    def anchors(*, epoch=0, seed=0):
        return collator(tokens, anchors=2, seed=seed)(micro_batch(0, epoch=epoch)).batch.blocks.anchors.tolist()

    assert anchors() == anchors()
    assert len({tuple(anchors(epoch=epoch)) for epoch in range(12)}) > 2
    assert len({tuple(anchors(seed=seed)) for seed in range(12)}) > 2
