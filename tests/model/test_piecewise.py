"""Attention piece by piece against one dense attention over all keys, forward and backward."""

import pytest
import torch
from torch.nn import functional

from dflash_pipeline.model import blocks as blocks_module
from dflash_pipeline.model.masks import attention_pieces, sees, window_of
from dflash_pipeline.model.piecewise import attend_piecewise
from tests.tiny_models import batch_of_documents, random_samples, tiny_config

HEADS, GROUPS, DIM = 4, 2, 16


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("blocks_per_cut", [1, 3, 64])
def test_it_equals_dense_attention_and_so_do_its_gradients(monkeypatch, window, blocks_per_cut):
    monkeypatch.setattr(blocks_module, "BLOCKS_PER_CUT", blocks_per_cut)
    config = tiny_config(window=window)
    blocks = batch_of_documents(*random_samples(lengths=(40, 9, 23), num_anchors=(9, 2, 4)), padding=3).blocks
    pieces = attention_pieces(blocks, config=config, dtype=torch.float32)
    num_slots, num_keys = 15 * config.block_size, blocks.num_context + 15 * config.block_size
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(1, length, heads, DIM, generator=generator).transpose(1, 2)
        for length, heads in ((num_slots, HEADS), (num_keys, GROUPS), (num_keys, GROUPS), (num_slots, HEADS))
    ]
    upstream = tensors.pop()
    for kind in set(config.layer_types):
        ours, theirs = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
        mixed = attend_piecewise(*ours, pieces, kind=kind, num_context=blocks.num_context)
        rule = sees(blocks, block_size=config.block_size, window=window_of(kind, config))
        mask = rule(0, 0, torch.arange(num_slots)[:, None], torch.arange(num_keys)[None])
        dense = functional.scaled_dot_product_attention(*theirs, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(mixed, dense)
        mixed.backward(upstream)
        dense.backward(upstream)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_no_piece_reads_another_document():
    """Work grows with the documents, not with the square of what is packed."""
    config = tiny_config()

    def cells(documents: int) -> int:
        samples = random_samples(lengths=(40,) * documents, num_anchors=(6,) * documents)
        pieces = attention_pieces(batch_of_documents(*samples).blocks, config=config, dtype=torch.float32)
        return sum(piece.masks["full_attention"].numel() for piece in pieces)

    assert cells(20) < 10 * cells(2) * 1.2
