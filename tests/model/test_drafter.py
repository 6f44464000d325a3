"""The drafter's forward over many blocks must be what it computes one block at a time when it serves."""

import numpy as np
import pytest
import torch

from dflash_pipeline.model import blocks as blocks_module
from dflash_pipeline.model.blocks import end_to_end, in_rows, place_blocks
from dflash_pipeline.model.drafter import Drafter, DrafterCache
from dflash_pipeline.model.masks import attention_pieces, sees
from tests.tiny_models import batch_of_rows, drafter_inputs, random_batch, strong_drafter, tiny_config, tiny_target

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.mark.parametrize("window", [None, 6, 12])
def test_training_forward_equals_cached_drafting(target, window):
    config = tiny_config(window=window)
    drafter = strong_drafter(config)
    batch = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    features, blocks = drafter_inputs(target, batch, config)
    hidden = drafter(features, blocks, batch.blocks)

    assert len(hidden) == 12
    caches = [DrafterCache(), DrafterCache()]
    for block, place in enumerate(batch.blocks.anchors.tolist()):
        row, anchor = divmod(place, 40)
        drafted = drafter.draft(features[row, caches[row].length : anchor], blocks[block], caches[row])
        assert caches[row].length == anchor
        torch.testing.assert_close(hidden[block], drafted, **CLOSE)


@pytest.mark.parametrize("window", [None, 6])
def test_pieces_change_nothing(target, window, monkeypatch):
    config = tiny_config(window=window)
    drafter = strong_drafter(config)
    batch = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    whole = drafter(*drafter_inputs(target, batch, config), batch.blocks)
    monkeypatch.setattr(blocks_module, "BLOCKS_PER_CUT", 2)
    cut = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    assert (len(batch.blocks.cuts), len(cut.blocks.cuts)) == (2, 7)
    torch.testing.assert_close(drafter(*drafter_inputs(target, cut, config), cut.blocks), whole, **CLOSE)


def test_a_padded_row_equals_the_row_alone(target):
    config = tiny_config(window=9)
    drafter = strong_drafter(config)
    both = random_batch(lengths=(40, 18), num_anchors=(7, 3))
    hidden = drafter(*drafter_inputs(target, both, config), both.blocks)
    anchors = both.blocks.anchors[7:].numpy() - 40
    features = target.features(both.input_ids[1:, :18])
    _, blocks = drafter_inputs(target, both, config)
    alone = drafter(features, blocks[7:], place_blocks([anchors], in_rows([18]), width=18))
    torch.testing.assert_close(hidden[7:], alone, **CLOSE)


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("layout", [in_rows, end_to_end])
def test_the_rule_equals_a_plain_loop(window, layout):
    size, anchors = 4, [[2, 3, 9, 14], [], [0, 5, 6]]
    blocks = place_blocks([np.array(a, np.int64) for a in anchors], layout([16, 7, 9]), width=32)
    placed = [(document, a) for document in (0, 2) for a in anchors[document]]
    keys = [(0, at) for at in range(14)] + [(2, at) for at in range(6)]
    assert blocks.num_context == len(keys)
    slots, all_keys = torch.arange(7 * size)[:, None], torch.arange(len(keys) + 7 * size)[None]
    seen = sees(blocks, block_size=size, window=window)(0, 0, slots, all_keys)
    for query in range(7 * size):
        block, slot = divmod(query, size)
        document, anchor = placed[block]
        for key in range(len(keys) + 7 * size):
            if key < len(keys):
                there, at = keys[key]
                visible = there == document and at < anchor and (window is None or anchor + slot - at < window)
            else:
                key_block, key_slot = divmod(key - len(keys), size)
                visible = key_block == block and (window is None or 0 <= slot - key_slot < window)
            assert bool(seen[query, key]) == visible, (query, key)
    assert seen.any(dim=-1).all()


@pytest.mark.parametrize("window", [None, 1, 5])
def test_dense_masks_of_pieces_are_the_rule(window, monkeypatch):
    """Whatever a piece leaves out, no slot of it sees."""
    monkeypatch.setattr(blocks_module, "BLOCKS_PER_CUT", 2)
    config = tiny_config(window=window)
    batch = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    pieces = attention_pieces(batch.blocks, config=config, dtype=torch.float32)
    num_keys = batch.blocks.num_context + 12 * 8
    for kind in set(config.layer_types):
        rule = sees(batch.blocks, block_size=8, window=window if kind == "sliding_attention" else None)
        whole = rule(0, 0, torch.arange(12 * 8)[:, None], torch.arange(num_keys)[None])
        found = torch.zeros_like(whole)
        for piece in pieces:
            own = slice(batch.blocks.num_context + piece.slots.start, batch.blocks.num_context + piece.slots.stop)
            keys = torch.cat((torch.arange(num_keys)[piece.contexts[kind]], torch.arange(num_keys)[own]))
            found[torch.arange(12 * 8)[piece.slots][:, None], keys] = piece.masks[kind] == 0
        assert torch.equal(found, whole)


def test_padding_blocks_and_empty_context_are_finite(target):
    config = tiny_config(window=5)
    drafter = strong_drafter(config)
    batch = batch_of_rows([np.arange(20), np.arange(12)], [np.array([0, 5, 9]), np.array([4])])
    hidden = drafter(*drafter_inputs(target, batch, config), batch.blocks)
    hidden.sum().backward()
    assert hidden.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in drafter.parameters())


def test_rows_without_any_valid_block_are_finite(target):
    config = tiny_config()
    drafter = strong_drafter(config)
    batch = batch_of_rows([np.arange(20)], [np.zeros(0, np.int64)])
    assert batch.blocks.anchors.tolist() == batch.blocks.ends.tolist() == [0]
    hidden = drafter(*drafter_inputs(target, batch, config), batch.blocks)
    hidden.sum().backward()
    assert hidden.isfinite().all()
    assert all(parameter.grad is not None for parameter in drafter.parameters())


def test_frequencies_stay_float32_and_out_of_the_state():
    drafter = Drafter(tiny_config())
    before = drafter.rotary.inv_freq.clone()
    drafter = drafter.to(torch.bfloat16)
    assert drafter.fc.weight.dtype == torch.bfloat16
    assert drafter.rotary.inv_freq.dtype == torch.float32
    assert torch.equal(drafter.rotary.inv_freq, before)
    assert not any("inv_freq" in name for name in drafter.state_dict())


def test_frequencies_are_the_targets(target):
    theirs = target._model.base_model.rotary_emb.inv_freq
    torch.testing.assert_close(Drafter(tiny_config()).rotary.inv_freq, theirs, rtol=1e-6, atol=0)


def test_initialisation_is_a_function_of_the_seed():
    config = tiny_config()
    torch.manual_seed(5)
    one = Drafter.initialised(config, 3).state_dict()
    torch.manual_seed(6)
    two, other = Drafter.initialised(config, 3).state_dict(), Drafter.initialised(config, 4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
    assert torch.equal(one["norm.weight"], torch.ones(64))
    assert one["fc.weight"].std().item() == pytest.approx(0.02, rel=0.05)


def test_bfloat16_drafts_like_float32(target):
    config = tiny_config()
    drafter = Drafter.initialised(config, 0)
    batch = random_batch(lengths=(30,), num_anchors=(4,))
    features, blocks = drafter_inputs(target, batch, config)
    exact = drafter(features, blocks, batch.blocks)
    half = drafter.to(torch.bfloat16)(features.bfloat16(), blocks.bfloat16(), batch.blocks)
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.15
