"""No block may see what does not exist when it is drafted: the features of its anchor or anything after them.

A leak of a single position trains and even serves well on toy data, so only a perturbation finds it.
"""

import numpy as np
import pytest
import torch

from dflash_pipeline.model import drafter as drafter_module
from dflash_pipeline.model import masks, mixing
from tests.tiny_models import (
    batch_of_documents,
    batch_of_rows,
    drafter_inputs,
    random_batch,
    random_samples,
    strong_drafter,
    tiny_config,
    tiny_target,
)


def sensitivity(config, anchors) -> torch.Tensor:
    """[A, S]: how strongly each block's hidden states depend on the features of each position."""
    target = tiny_target()
    drafter = strong_drafter(config)
    batch = batch_of_rows([np.arange(30)], [np.array(anchors)])
    _, blocks = drafter_inputs(target, batch, config)
    features = target.features(batch.input_ids).requires_grad_()
    hidden = drafter(features, blocks, batch.blocks)
    found = []
    for block in range(len(anchors)):
        (gradient,) = torch.autograd.grad(hidden[block].square().sum(), features, retain_graph=True)
        found.append(gradient[0].abs().amax(-1))
    return torch.stack(found)


def leaks(found: torch.Tensor, anchors) -> list[tuple[int, int]]:
    return [
        (anchor, position)
        for row, anchor in zip(found, anchors, strict=True)
        for position in range(30)
        if position >= anchor and row[position] > 0
    ]


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("anchors", [(4, 5, 6, 7), (3, 11, 22), (9, 9, 10)])
def test_a_block_depends_on_features_before_its_anchor_only(window, anchors):
    found = sensitivity(tiny_config(window=window), anchors)
    assert leaks(found, anchors) == []
    for row, anchor in zip(found, anchors, strict=True):
        assert row[anchor - 1] > 0
        assert (row[:anchor] > 0).all()  # the second layer is full even where the first slides


def test_the_window_ends_the_context():
    config = tiny_config(num_layers=1, window=6)
    (row,) = sensitivity(config, (20,))
    assert torch.nonzero(row).flatten().tolist() == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("too_far", [1, 8])
def test_a_leak_would_be_caught(monkeypatch, too_far):
    def leaky(blocks, *, block_size, window):
        rule, ends = sees(blocks, block_size=block_size, window=window), blocks.context_ends

        def further(row, head, slot, key):
            last = ends[slot // block_size] + too_far
            return rule(row, head, slot, key) | ((key < last) & (key < blocks.num_context))

        return further

    sees = masks.sees
    monkeypatch.setattr(masks, "sees", leaky)
    assert leaks(sensitivity(tiny_config(), (4, 5, 12)), (4, 5, 12))


@pytest.mark.parametrize("window", [None, 6])
def test_a_block_sees_nothing_of_another_document(window):
    config = tiny_config(window=window)
    target, drafter = tiny_target(), strong_drafter(config)
    tokens, anchors = random_samples(lengths=(12, 9, 20), num_anchors=(3, 2, 4))
    batch = batch_of_documents(tokens, anchors, padding=3)
    features, embeddings = drafter_inputs(target, batch, config)
    features.requires_grad_()
    hidden = drafter(features, embeddings, batch.blocks)
    for block, (anchor, start) in enumerate(
        zip(batch.blocks.anchors.tolist(), [0] * 3 + [12] * 2 + [21] * 4, strict=True)
    ):
        (gradient,) = torch.autograd.grad(hidden[block].square().sum(), features, retain_graph=True)
        assert gradient[0].abs().amax(-1).nonzero().flatten().tolist() == list(range(start, anchor))


def test_a_documents_features_are_its_own():
    """What the target sees before a document in its row is nothing: each is run as if it were alone."""
    target = tiny_target()
    tokens, anchors = random_samples(lengths=(12, 9), num_anchors=(3, 2))
    features, _ = drafter_inputs(target, batch_of_documents(tokens, anchors), tiny_config())
    alone = target.features(torch.from_numpy(tokens[1])[None])
    torch.testing.assert_close(features[:, 12:], alone)


def test_blocks_do_not_see_each_other():
    config = tiny_config()
    target, drafter = tiny_target(), strong_drafter(config)
    batch = random_batch(lengths=(30,), num_anchors=(4,))
    features, blocks = drafter_inputs(target, batch, config)
    blocks.requires_grad_()
    hidden = drafter(features, blocks, batch.blocks)
    (gradient,) = torch.autograd.grad(hidden[2, 3].square().sum(), blocks)
    touched = gradient.abs().amax(-1) > 0
    assert touched[2].all()
    assert not touched[[0, 1, 3]].any()


def test_a_sliding_layer_is_causal_inside_a_block():
    config = tiny_config(num_layers=1, window=6)
    target, drafter = tiny_target(), strong_drafter(config)
    batch = random_batch(lengths=(30,), num_anchors=(2,))
    features, blocks = drafter_inputs(target, batch, config)
    blocks.requires_grad_()
    hidden = drafter(features, blocks, batch.blocks)
    (gradient,) = torch.autograd.grad(hidden[1, 3].square().sum(), blocks)
    touched = gradient[1].abs().amax(-1) > 0
    assert touched.tolist() == [True] * 4 + [False] * 4


def test_the_module_under_test_uses_these_masks():
    assert mixing.attention_pieces is masks.attention_pieces
    assert drafter_module.mixer_of is mixing.mixer_of
