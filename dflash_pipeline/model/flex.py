"""Attention by FlexAttention: one kernel over all blocks, which skips tiles of keys that no slot of a tile sees.

On CUDA. On a CPU it has no backward pass; there it is compared with attention in pieces (`piecewise`), forward only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from dflash_pipeline.model.blocks import Blocks
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.masks import sees, window_of


def block_masks(blocks: Blocks, config: DrafterConfig) -> dict[str, BlockMask]:
    """Which tiles have something to see, for each kind of layer, made once for all layers."""
    num_slots = blocks.anchors.shape[0] * config.block_size
    make: Callable[..., Any] = create_block_mask
    if blocks.anchors.is_cuda:
        make = _compiled_block_mask()
    return {
        kind: make(
            sees(blocks, block_size=config.block_size, window=window_of(kind, config)),
            None,
            None,
            num_slots,
            blocks.num_context + num_slots,
            device=blocks.anchors.device,
        )
        for kind in sorted(set(config.layer_types))
    }


def attend_flex(q_1NQD: Tensor, k_1GTD: Tensor, v_1GTD: Tensor, mask: BlockMask) -> Tensor:
    """[1, N, Q, D]"""
    attend: Callable[..., Any] = flex_attention
    if q_1NQD.is_cuda:
        attend = _compiled_attention()
    mixed: Tensor = attend(q_1NQD, k_1GTD, v_1GTD, block_mask=mask, enable_gqa=True)
    return mixed


# Uncompiled, both would make the whole matrix of slots and keys. Numbers of slots and keys differ from batch to batch:
# after the second, one kernel serves them all.
@functools.cache
def _compiled_attention() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


@functools.cache
def _compiled_block_mask() -> Callable[..., Any]:
    return torch.compile(create_block_mask, dynamic=True)
