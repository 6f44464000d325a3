"""FlexAttention and attention in pieces ask one rule. On a CPU the former has a forward pass only."""

import pytest
import torch

from dflash_pipeline.model.flex import attend_flex, block_masks
from dflash_pipeline.model.mixing import mixer_of
from tests.tiny_models import batch_of_documents, batch_of_rows, random_samples, tiny_config


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("layout", [batch_of_rows, batch_of_documents])
def test_it_reads_what_pieces_read(window, layout):
    config = tiny_config(window=window)
    blocks = layout(*random_samples(lengths=(60, 9, 150), num_anchors=(9, 2, 24))).blocks
    num_slots = 35 * config.block_size
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, length, 16, generator=generator)
        for heads, length in ((4, num_slots), (2, blocks.num_context + num_slots), (2, blocks.num_context + num_slots))
    )
    masks = block_masks(blocks, config)
    mix = mixer_of(blocks, config, dtype=torch.float32)
    for kind in set(config.layer_types):
        torch.testing.assert_close(attend_flex(q, k, v, masks[kind]), mix(q, k, v, kind))


def test_tiles_of_other_documents_are_skipped():
    config = tiny_config()
    samples = random_samples(lengths=(400,) * 6, num_anchors=(32,) * 6)
    mask = block_masks(batch_of_documents(*samples).blocks, config)["full_attention"]
    assert mask.sparsity() > 70
