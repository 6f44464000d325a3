"""Labels, weights and anchors: a shift by one here trains to zero loss and serves at acceptance 1."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.model import objective
from dflash_pipeline.model.objective import (
    TrainingBatch,
    default_decay,
    drafter_inputs,
    micro_batch_loss,
    sample_anchors,
    slot_weights,
)
from tests.tiny_models import MASK_TOKEN, VOCAB, random_batch, strong_drafter, tiny_config, tiny_target

masks = st.lists(st.booleans(), min_size=1, max_size=80).map(lambda bits: np.asarray(bits, dtype=np.bool_))


def weights_of(batch: TrainingBatch, *, block_size: int = 8, decay: float = 4.0) -> torch.Tensor:
    return slot_weights(batch.loss_mask, batch.lengths, batch.anchors, batch.valid, block_size=block_size, decay=decay)


@given(masks, st.integers(1, 20), st.integers(0, 5), st.integers(0, 5))
def test_anchors_are_eligible_sorted_and_as_many_as_asked(supervised, most, epoch, sample_id):
    anchors = sample_anchors(supervised, max_anchors=most, seed=3, epoch=epoch, sample_id=sample_id)
    eligible = [i for i in range(len(supervised) - 1) if supervised[i] and supervised[i + 1]]
    assert anchors.dtype == np.int64
    assert anchors.size == min(most, len(eligible))
    assert set(anchors.tolist()) <= set(eligible)
    assert anchors.tolist() == sorted(set(anchors.tolist()))
    fewer = sample_anchors(supervised, max_anchors=max(1, most // 2), seed=3, epoch=epoch, sample_id=sample_id)
    assert set(fewer.tolist()) <= set(anchors.tolist())


def test_anchors_are_pinned_and_change_with_every_word():
    everything = np.ones(200, dtype=np.bool_)
    chosen = sample_anchors(everything, max_anchors=6, seed=1, epoch=2, sample_id=3)
    # Resumed runs rely on these.
    assert chosen.tolist() == [28, 134, 150, 165, 170, 185]
    for changed in ({"seed": 0}, {"epoch": 0}, {"sample_id": 0}):
        other = sample_anchors(everything, **({"max_anchors": 6, "seed": 1, "epoch": 2, "sample_id": 3} | changed))
        assert other.tolist() != chosen.tolist()


def test_anchors_cover_a_text_evenly():
    counts = np.zeros(100)
    for sample_id in range(400):
        counts[sample_anchors(np.ones(101, np.bool_), max_anchors=10, seed=0, epoch=0, sample_id=sample_id)] += 1
    assert counts.min() > 15
    assert counts.max() < 70


@pytest.mark.parametrize(("block_size", "decay"), [(16, 7), (10, 5), (8, 4), (13, 6), (4, 2), (2, 1)])
def test_default_decay_meets_the_published_ones(block_size, decay):
    assert default_decay(block_size) == decay


@settings(max_examples=60)
@given(st.data())
def test_weights_equal_a_plain_loop(data):
    block_size, decay = data.draw(st.integers(2, 6)), 2.5
    length = data.draw(st.integers(2, 14))
    mask = torch.tensor([data.draw(st.lists(st.booleans(), min_size=16, max_size=16))])
    anchors = torch.tensor([[data.draw(st.integers(0, length - 1)) for _ in range(3)]])
    valid = torch.tensor([[True, True, False]])
    weights = slot_weights(mask, torch.tensor([length]), anchors, valid, block_size=block_size, decay=decay)
    for block in range(3):
        going_on = bool(valid[0, block])
        assert weights[0, block, 0] == 0
        for slot in range(1, block_size):
            at = int(anchors[0, block]) + slot
            going_on = going_on and at < length and bool(mask[0, at])
            expected = math.exp(-(slot - 1) / decay) if going_on else 0.0
            assert float(weights[0, block, slot]) == pytest.approx(expected, rel=1e-6)
    assert weights.dtype == torch.float32


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def test_loss_equals_a_plain_loop(target):
    config = tiny_config()
    drafter = strong_drafter(config)
    batch = random_batch(lengths=(30, 17), num_anchors=(5, 3))
    batch.loss_mask[0, 20] = False
    weights = weights_of(batch)
    hidden = drafter(*drafter_inputs(target, batch, config), batch.anchors, batch.valid)
    loss, prefix, blocks = 0.0, 0, 0
    for row in range(2):
        for block in range(5):
            leading = True
            blocks += int(weights[row, block, 1] > 0)
            prefix += int(weights[row, block, 1] > 0)
            for slot in range(1, 8):
                if weights[row, block, slot] > 0:
                    label = int(batch.input_ids[row, batch.anchors[row, block] + slot])
                    scores = target.logits(hidden[row, block, slot]).detach().double()
                    loss += float(weights[row, block, slot] * (scores.logsumexp(-1) - scores[label]))
                    leading = leading and int(scores.argmax()) == label
                    prefix += int(leading)
    parts = micro_batch_loss(drafter, target, batch, weights)
    assert float(parts.loss_sum.detach()) == pytest.approx(loss, rel=1e-5)
    assert (int(parts.num_correct_prefix), int(parts.num_blocks)) == (prefix, blocks)
    assert blocks == 8


def test_a_block_begins_with_its_anchor_then_masks(target):
    config = tiny_config()
    batch = random_batch(lengths=(30,), num_anchors=(4,))
    features, blocks = drafter_inputs(target, batch, config)
    table = target._embedding
    assert torch.equal(blocks[0, :, 0], table[batch.input_ids[0, batch.anchors[0]]])
    assert torch.equal(blocks[0, :, 1:], table[MASK_TOKEN].expand(4, 7, -1))
    assert features.shape[1] == int(batch.anchors.max())


@pytest.mark.parametrize("split", [(1, 1, 1, 1), (2, 2), (4,)])
def test_sums_do_not_depend_on_how_rows_are_shared(target, split):
    config = tiny_config()
    drafter = strong_drafter(config)
    batch = random_batch(lengths=(40, 9, 23, 31), num_anchors=(9, 2, 4, 5))
    weights = weights_of(batch)
    whole = _gradients(drafter, target, [(batch, weights)])
    parts, start = [], 0
    for rows in split:
        take = slice(start, start + rows)
        part = TrainingBatch(
            input_ids=batch.input_ids[take],
            loss_mask=batch.loss_mask[take],
            lengths=batch.lengths[take],
            anchors=batch.anchors[take],
            valid=batch.valid[take],
        )
        parts.append((part, weights[take]))
        start += rows
    shared = _gradients(drafter, target, parts)
    assert shared[0] == pytest.approx(whole[0], rel=1e-5)
    assert shared[1:3] == whole[1:3]
    for one, other in zip(shared[3], whole[3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_chunks_of_the_vocabulary_change_nothing(target, monkeypatch):
    drafter = strong_drafter(tiny_config())
    batch = random_batch(lengths=(40, 20), num_anchors=(9, 4))
    whole = _gradients(drafter, target, [(batch, weights_of(batch))])
    monkeypatch.setattr(objective, "SLOTS_PER_CHUNK", 7)
    cut = _gradients(drafter, target, [(batch, weights_of(batch))])
    assert cut[0] == pytest.approx(whole[0], rel=1e-5)
    assert cut[1:3] == whole[1:3]
    for one, other in zip(cut[3], whole[3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_logits_are_made_where_there_is_a_weight_only(target):
    batch = random_batch(lengths=(30, 12), num_anchors=(6, 2))
    weights = weights_of(batch)
    rows = []
    handle = target._model.lm_head.register_forward_hook(lambda _m, _i, output: rows.append(output.shape[0]))
    micro_batch_loss(strong_drafter(tiny_config()), target, batch, weights)
    handle.remove()
    assert sum(rows) == int((weights > 0).sum()) < weights.numel()


def test_without_a_weight_the_loss_is_zero_and_reaches_every_parameter(target):
    drafter = strong_drafter(tiny_config())
    batch = random_batch(lengths=(20, 12), num_anchors=(3, 1))
    parts = micro_batch_loss(drafter, target, batch, torch.zeros(2, 3, 8))
    parts.loss_sum.backward()
    assert (float(parts.loss_sum.detach()), int(parts.num_correct_prefix), int(parts.num_blocks)) == (0.0, 0, 0)
    assert all(p.grad is not None and not p.grad.any() for p in drafter.parameters())


def _gradients(drafter, target, batches):
    drafter.zero_grad()
    loss, prefix, blocks = 0.0, 0, 0
    for batch, weights in batches:
        parts = micro_batch_loss(drafter, target, batch, weights)
        parts.loss_sum.backward()
        loss += float(parts.loss_sum.detach())
        prefix += int(parts.num_correct_prefix)
        blocks += int(parts.num_blocks)
    return loss, prefix, blocks, [parameter.grad.clone() for parameter in drafter.parameters()]


def test_leading_correct_slots_are_counted_up_to_the_first_wrong_one(target, monkeypatch):
    batch = random_batch(lengths=(30,), num_anchors=(3,))
    batch.anchors[0] = torch.tensor([4, 10, 26])  # the last block has slots 1 to 3 only
    weights = weights_of(batch)
    right = torch.tensor([[1, 1, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    within = weights[0, :, 1:] > 0
    labels = torch.stack([batch.input_ids[0].roll(-int(a))[1:8] for a in batch.anchors[0]])
    best = torch.where(right, labels, (labels + 1) % VOCAB)[within]
    monkeypatch.setattr(target, "logits", lambda hidden: torch.nn.functional.one_hot(best, VOCAB).float())
    parts = micro_batch_loss(strong_drafter(tiny_config()), target, batch, weights)
    assert int(within.sum()) == 17
    assert (int(parts.num_correct_prefix), int(parts.num_blocks)) == (3 + 2 + 0 + 3, 3)
