"""Labels, weights and anchors: a shift by one here trains to zero loss and serves at acceptance 1."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.model import blocks
from dflash_pipeline.model import objective as objective_module
from dflash_pipeline.model import slot_losses as slot_losses_module
from dflash_pipeline.model.anchors import default_anchor_share, sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import TrainingBatch, in_rows, place_blocks
from dflash_pipeline.model.objective import (
    Objective,
    default_decay,
    leading_correct,
    micro_batch_loss,
    planned_weights,
)
from tests.tiny_models import (
    MASK_TOKEN,
    VOCAB,
    batch_of_documents,
    batch_of_rows,
    drafter_inputs,
    random_batch,
    random_samples,
    strong_drafter,
    tiny_config,
    tiny_target,
)

masks = st.lists(st.booleans(), min_size=1, max_size=80).map(lambda bits: np.asarray(bits, dtype=np.bool_))


DECAY = Objective(weighting="decay", decay=4.0)
OBJECTIVES = [DECAY, Objective(weighting="dpace", decay=4.0), Objective(weighting="decay", decay=4.0, kl=0.5)]
FOUR = {"lengths": (40, 9, 23, 31), "num_anchors": (9, 2, 4, 5)}


def weights_of(batch: TrainingBatch, objective: Objective = DECAY) -> torch.Tensor:
    return planned_weights(supervised_slots(batch.loss_mask, batch.blocks, block_size=8), objective)


@given(masks, st.floats(0.01, 1), st.integers(1, 20), st.integers(0, 5), st.integers(0, 5))
def test_anchors_are_eligible_sorted_and_as_many_as_asked(supervised, share, most, epoch, sample_id):
    def sampled(**changed):
        asked = {"share": share, "most": most, "seed": 3, "epoch": epoch, "sample_id": sample_id}
        return sample_anchors(supervised, **(asked | changed))

    anchors = sampled()
    eligible = [i for i in range(len(supervised) - 1) if supervised[i] and supervised[i + 1]]
    assert anchors.dtype == np.int64
    wanted = math.ceil(share * int(supervised.sum()) - 1e-9)
    assert anchors.size == min(most, wanted, len(eligible))
    assert (anchors.size > 0) == bool(eligible)
    assert set(anchors.tolist()) <= set(eligible)
    assert anchors.tolist() == sorted(set(anchors.tolist()))
    assert set(sampled(most=max(1, most // 2)).tolist()) <= set(anchors.tolist())
    assert set(sampled(share=share / 2).tolist()) <= set(anchors.tolist())


def test_anchors_are_in_proportion_to_supervised_tokens_up_to_the_most():
    counts = [
        sample_anchors(np.ones(n, np.bool_), share=0.07, most=30, seed=0, epoch=0, sample_id=0).size
        for n in (2, 100, 200, 1000)
    ]
    assert counts == [1, 7, 14, 30]
    assert [default_anchor_share(size) for size in (2, 8, 16)] == [1.0, 0.25, 0.125]


def test_anchors_are_pinned_and_change_with_every_word():
    everything = np.ones(200, dtype=np.bool_)
    asked = {"share": 1.0, "most": 6, "seed": 1, "epoch": 2, "sample_id": 3}
    # Resumed runs rely on these.
    assert sample_anchors(everything, **asked).tolist() == [28, 134, 150, 165, 170, 185]
    for changed in ({"seed": 0}, {"epoch": 0}, {"sample_id": 0}):
        assert sample_anchors(everything, **(asked | changed)).tolist() != sample_anchors(everything, **asked).tolist()


def test_anchors_cover_a_text_evenly():
    counts = np.zeros(100)
    for sample_id in range(400):
        counts[sample_anchors(np.ones(101, np.bool_), share=1.0, most=10, seed=0, epoch=0, sample_id=sample_id)] += 1
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
    anchors = np.sort([data.draw(st.integers(0, length - 1)) for _ in range(3)])
    placed = place_blocks([anchors], in_rows([length]), width=16)
    slots = supervised_slots(mask, placed, block_size=block_size)
    weights = planned_weights(slots, Objective(weighting="decay", decay=decay))
    for block in range(3):
        going_on = True
        assert weights[block, 0] == 0
        for slot in range(1, block_size):
            at = int(placed.anchors[block]) + slot
            going_on = going_on and at < length and bool(mask[0, at])
            expected = math.exp(-(slot - 1) / decay) if going_on else 0.0
            assert float(weights[block, slot]) == pytest.approx(expected, rel=1e-6)
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
    hidden = drafter(*drafter_inputs(target, batch, config), batch.blocks)
    loss, prefix, blocks = 0.0, 0, 0
    for block, anchor in enumerate(batch.blocks.anchors.tolist()):
        leading = True
        blocks += int(weights[block, 1] > 0)
        prefix += int(weights[block, 1] > 0)
        for slot in range(1, 8):
            if weights[block, slot] > 0:
                label = int(batch.input_ids.flatten()[anchor + slot])
                scores = target.logits(hidden[block, slot]).detach().double()
                loss += float(weights[block, slot] * (scores.logsumexp(-1) - scores[label]))
                leading = leading and int(scores.argmax()) == label
                prefix += int(leading)
    parts = micro_batch_loss(drafter, target, batch, weights, DECAY)
    assert float(parts.loss_sum.detach()) == pytest.approx(loss, rel=1e-5)
    assert (int(parts.num_correct_prefix), int(parts.num_blocks)) == (prefix, blocks)
    assert blocks == 8


def test_a_block_begins_with_its_anchor_then_masks(target):
    config = tiny_config()
    batch = random_batch(lengths=(30,), num_anchors=(4,))
    features, blocks = drafter_inputs(target, batch, config)
    table = target._embedding
    assert torch.equal(blocks[:, 0], table[batch.input_ids[0, batch.blocks.anchors]])
    assert torch.equal(blocks[:, 1:], table[MASK_TOKEN].expand(4, 7, -1))
    assert features.shape[1] == int(batch.blocks.anchors.max())


@pytest.mark.parametrize("split", [(1, 1, 1, 1), (2, 2), (4,)])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sums_do_not_depend_on_how_rows_are_shared(target, split, objective):
    drafter = strong_drafter(tiny_config())
    tokens, anchors = random_samples(**FOUR)
    whole = _gradients(drafter, target, [batch_of_rows(tokens, anchors)], objective)
    parts, start = [], 0
    for rows in split:
        parts.append(batch_of_rows(tokens[start : start + rows], anchors[start : start + rows]))
        start += rows
    _assert_alike(_gradients(drafter, target, parts, objective), whole)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("window", [None, 6])
def test_documents_in_one_row_give_what_padded_rows_give(target, objective, window, monkeypatch):
    drafter = strong_drafter(tiny_config(window=window))
    monkeypatch.setattr(blocks, "BLOCKS_PER_CUT", 4)
    tokens, anchors = random_samples(**FOUR)
    anchors[1] = anchors[1][:0]  # A document without a block.
    anchors[3][-1] = 30  # One whose labels would be the next document's.
    rows = _gradients(drafter, target, [batch_of_rows(tokens, anchors)], objective)
    for padding in (0, 5):
        documents = batch_of_documents(tokens, anchors, padding=padding)
        _assert_alike(_gradients(drafter, target, [documents], objective), rows)
    backwards = batch_of_documents(tokens[::-1], anchors[::-1])
    _assert_alike(_gradients(drafter, target, [backwards], objective), rows)


def test_labels_end_with_their_document():
    tokens, anchors = random_samples(lengths=(10, 10), num_anchors=(1, 1))
    anchors[0][:] = 8
    anchors[1][:] = 4
    slots = supervised_slots(*_mask_and_blocks(batch_of_documents(tokens, anchors)), block_size=8)
    # Everything but the first three tokens is supervised, but position 10 belongs to the second document.
    assert slots.sum(-1).tolist() == [1, 5]


def _mask_and_blocks(batch: TrainingBatch):
    mask = batch.loss_mask.clone()
    mask[:] = True
    return mask, batch.blocks


def test_dpace_weighs_slots_by_a_plain_loop(target):
    objective = Objective(weighting="dpace", decay=4.0, smoothing=0.3)
    config = tiny_config()
    drafter = strong_drafter(config)
    batch = random_batch(lengths=(30, 17), num_anchors=(5, 3))
    batch.loss_mask[0, 20] = False
    planned = weights_of(batch, objective)
    hidden = drafter(*drafter_inputs(target, batch, config), batch.blocks).detach()
    loss = weight = 0.0
    for block, anchor in enumerate(batch.blocks.anchors.tolist()):
        accepted, chance, losses = [], 1.0, []
        for slot in range(1, 8):
            if planned[block, slot] > 0:
                label = int(batch.input_ids.flatten()[anchor + slot])
                scores = target.logits(hidden[block, slot]).detach().double().log_softmax(-1)
                losses.append(-float(scores[label]))
                chance *= 0.7 * math.exp(float(scores[label])) + 0.3
                accepted.append(chance)
        weights = [sum(accepted[at:]) for at in range(len(accepted))]
        loss += sum(w * x for w, x in zip(weights, losses, strict=True))
        weight += sum(weights)
    parts = micro_batch_loss(drafter, target, batch, planned, objective)
    assert float(parts.loss_sum.detach()) == pytest.approx(loss, rel=1e-5)
    assert float(parts.weight) == pytest.approx(weight, rel=1e-5)
    assert not parts.weight.requires_grad


def test_dpaces_weights_carry_no_gradient(target, monkeypatch):
    """The gradient is that of the same weights given beforehand."""
    objective = Objective(weighting="dpace", decay=4.0)
    drafter = strong_drafter(tiny_config())
    batch = random_batch(lengths=(30,), num_anchors=(4,))
    found = []
    final = objective_module._dpace_weights
    monkeypatch.setattr(objective_module, "_dpace_weights", lambda *inputs: found.append(final(*inputs)) or found[-1])
    adaptive = _gradients(drafter, target, [batch], objective)
    planned = weights_of(batch, objective)
    planned[planned > 0] = found[0]
    drafter.zero_grad()
    micro_batch_loss(drafter, target, batch, planned, DECAY).loss_sum.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(adaptive[3], drafter.parameters(), strict=True))


@pytest.mark.parametrize("kl", [0.4, 1.0])
def test_divergence_from_the_targets_logits_equals_a_plain_loop(target, kl):
    objective = Objective(weighting="decay", decay=4.0, kl=kl)
    config = tiny_config()
    drafter = strong_drafter(config)
    batch = random_batch(lengths=(30, 17), num_anchors=(5, 3))
    weights = weights_of(batch, objective)
    hidden = drafter(*drafter_inputs(target, batch, config), batch.blocks).detach()
    teachers = target._model(batch.input_ids).logits.detach().double().log_softmax(-1)
    loss = 0.0
    for block, slot in weights.nonzero().tolist():
        row, at = divmod(int(batch.blocks.anchors[block]) + slot, batch.input_ids.shape[1])
        scores = target.logits(hidden[block, slot]).detach().double().log_softmax(-1)
        teacher = teachers[row, at - 1]
        divergence = float((teacher.exp() * (teacher - scores)).sum())
        entropy = -float(scores[int(batch.input_ids[row, at])])
        loss += float(weights[block, slot]) * (kl * divergence + (1 - kl) * entropy)
    parts = micro_batch_loss(drafter, target, batch, weights, objective)
    assert float(parts.loss_sum.detach()) == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_of_the_vocabulary_change_nothing(target, monkeypatch, objective):
    drafter = strong_drafter(tiny_config())
    batch = random_batch(lengths=(40, 20), num_anchors=(9, 4))
    whole = _gradients(drafter, target, [batch], objective)
    monkeypatch.setitem(slot_losses_module.LOGITS_PER_CHUNK, "cpu", 7 * VOCAB)
    _assert_alike(_gradients(drafter, target, [batch], objective), whole)


def test_logits_are_made_where_there_is_a_weight_only(target):
    batch = random_batch(lengths=(30, 12), num_anchors=(6, 2))
    weights = weights_of(batch)
    rows = []
    handle = target._model.lm_head.register_forward_hook(lambda _m, _i, output: rows.append(output.shape[0]))
    micro_batch_loss(strong_drafter(tiny_config()), target, batch, weights, DECAY)
    handle.remove()
    assert sum(rows) == int((weights > 0).sum()) < weights.numel()


def test_without_a_weight_the_loss_is_zero_and_reaches_every_parameter(target):
    drafter = strong_drafter(tiny_config())
    batch = random_batch(lengths=(20, 12), num_anchors=(3, 1))
    parts = micro_batch_loss(drafter, target, batch, torch.zeros(4, 8), DECAY)
    parts.loss_sum.backward()
    assert (float(parts.loss_sum.detach()), int(parts.num_correct_prefix), int(parts.num_blocks)) == (0.0, 0, 0)
    assert all(p.grad is not None and not p.grad.any() for p in drafter.parameters())


def _gradients(drafter, target, batches, objective):
    drafter.zero_grad()
    loss, prefix, blocks = 0.0, 0, 0
    for batch in batches:
        parts = micro_batch_loss(drafter, target, batch, weights_of(batch, objective), objective)
        parts.loss_sum.backward()
        loss += float(parts.loss_sum.detach())
        prefix += int(parts.num_correct_prefix)
        blocks += int(parts.num_blocks)
    return loss, prefix, blocks, [parameter.grad.clone() for parameter in drafter.parameters()]


def _assert_alike(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    assert one[1:3] == other[1:3]
    assert one[2] > 0
    for a, b in zip(one[3], other[3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


def test_leading_correct_slots_are_counted_up_to_the_first_wrong_one(target, monkeypatch):
    [tokens], _ = random_samples(lengths=(30,), num_anchors=(3,))
    batch = batch_of_rows([tokens], [np.array([4, 10, 26])])  # the last block has slots 1 to 3 only
    weights = weights_of(batch)
    right = torch.tensor([[1, 1, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    within = weights[:, 1:] > 0
    labels = torch.stack([batch.input_ids[0].roll(-int(a))[1:8] for a in batch.blocks.anchors])
    best = torch.where(right, labels, (labels + 1) % VOCAB)[within]
    monkeypatch.setattr(target, "logits", lambda hidden: torch.nn.functional.one_hot(best, VOCAB).float())
    parts = micro_batch_loss(strong_drafter(tiny_config()), target, batch, weights, DECAY)
    assert int(within.sum()) == 17
    assert (int(parts.num_correct_prefix), int(parts.num_blocks)) == (3 + 2 + 0 + 3, 3)


@given(data=st.data())
def test_slots_without_a_weight_are_no_misses_and_end_no_block(data):
    """Against a plain loop, with holes anywhere."""
    blocks, slots = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 6))
    weighted = [[False, *data.draw(st.lists(st.booleans(), min_size=slots, max_size=slots))] for _ in range(blocks)]
    right = [[data.draw(st.booleans()) for _ in range(slots + 1)] for _ in range(blocks)]
    expected = 0
    for block_weighted, block_right in zip(weighted, right, strict=True):
        for has_weight, is_right in zip(block_weighted, block_right, strict=True):
            if has_weight and not is_right:
                break
            expected += has_weight
    chosen = torch.tensor(weighted).flatten().nonzero().squeeze(1)
    found = leading_correct(torch.tensor(right).flatten()[chosen], chosen, torch.Size((blocks, slots + 1)))
    assert int(found) == expected
