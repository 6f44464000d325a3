"""Which attention a device trains with. All of them ask the same rule who sees what (`masks.sees`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dflash_pipeline.model.blocks import Blocks
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.flex import attend_flex, block_masks
from dflash_pipeline.model.masks import attention_pieces
from dflash_pipeline.model.piecewise import attend_piecewise

Mixer = Callable[[Tensor, Tensor, Tensor, str], Tensor]
"""Queries [1, N, Q, D] of all slots, keys and values [1, G, T, D] of context and slots, and the kind of a layer, to
what the slots read [1, N, Q, D]."""


def mixer_of(blocks: Blocks, config: DrafterConfig, *, dtype: torch.dtype) -> Mixer:
    """The attention for a micro-batch's blocks: FlexAttention on CUDA, in pieces elsewhere."""
    return _flex(blocks, config) if blocks.anchors.is_cuda else _in_pieces(blocks, config, dtype)


def _flex(blocks: Blocks, config: DrafterConfig) -> Mixer:
    masks = block_masks(blocks, config)

    def mix(q: Tensor, k: Tensor, v: Tensor, kind: str) -> Tensor:
        # Autocast leaves normed queries and keys in float32; the kernel wants one type.
        return attend_flex(q.to(v.dtype), k.to(v.dtype), v, masks[kind])

    return mix


def _in_pieces(blocks: Blocks, config: DrafterConfig, dtype: torch.dtype) -> Mixer:
    pieces = attention_pieces(blocks, config=config, dtype=dtype)

    def mix(q: Tensor, k: Tensor, v: Tensor, kind: str) -> Tensor:
        return attend_piecewise(q, k, v, pieces, kind=kind, num_context=blocks.num_context)

    return mix
