"""The drafter's forward over many blocks must be what it computes one block at a time when it serves."""

import numpy as np
import pytest
import torch

from dflash_pipeline.model import blocks as blocks_module
from dflash_pipeline.model.blocks import blocks_in_rows
from dflash_pipeline.model.drafter import Drafter, DrafterCache
from dflash_pipeline.model.masks import visible_keys
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

    compared = 0
    for row in range(2):
        cache = DrafterCache()
        for block in range(int(batch.blocks.valid[row].sum())):
            anchor = int(batch.blocks.anchors[row, block])
            drafted = drafter.draft(features[row, cache.length : anchor], blocks[row, block], cache)
            assert cache.length == anchor
            torch.testing.assert_close(hidden[row, block], drafted, **CLOSE)
            compared += 1
    assert compared == 12


@pytest.mark.parametrize("window", [None, 6])
def test_pieces_change_nothing(target, window, monkeypatch):
    config = tiny_config(window=window)
    drafter = strong_drafter(config)
    batch = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    whole = drafter(*drafter_inputs(target, batch, config), batch.blocks)
    monkeypatch.setattr(blocks_module, "BLOCKS_PER_CUT", 2)
    cut = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    assert (len(batch.blocks.cuts), len(cut.blocks.cuts)) == (1, 4)
    torch.testing.assert_close(drafter(*drafter_inputs(target, cut, config), cut.blocks), whole, **CLOSE)


def test_a_padded_row_equals_the_row_alone(target):
    config = tiny_config(window=9)
    drafter = strong_drafter(config)
    both = random_batch(lengths=(40, 18), num_anchors=(7, 3))
    hidden = drafter(*drafter_inputs(target, both, config), both.blocks)
    anchors = both.blocks.anchors[1, :3].numpy()
    features = target.features(both.input_ids[1:, :18])
    _, blocks = drafter_inputs(target, both, config)
    alone = drafter(features, blocks[1:, :3], blocks_in_rows([anchors], [18], width=18))
    torch.testing.assert_close(hidden[1:, :3], alone, **CLOSE)


@pytest.mark.parametrize("window", [None, 1, 5])
def test_masks_equal_a_plain_loop(window):
    block_size, context_length = 4, 14
    anchors = torch.tensor([[2, 3, 9, 14], [0, 5, 6, 0]])
    limits = torch.tensor([[2, 3, 9, 14], [0, 5, 6, 0]])
    mask = visible_keys(anchors, limits, context=range(context_length), block_size=block_size, window=window)
    for row in range(2):
        for query in range(16):
            block, slot = divmod(query, block_size)
            position = int(anchors[row, block]) + slot
            for key in range(context_length + 16):
                if key < context_length:
                    visible = key < limits[row, block] and (window is None or position - key < window)
                else:
                    key_block, key_slot = divmod(key - context_length, block_size)
                    visible = key_block == block and (window is None or 0 <= slot - key_slot < window)
                assert bool(mask[row, query, key]) == bool(visible), (row, query, key)
    assert mask.any(dim=-1).all()


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
    assert not batch.blocks.valid.any()
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
