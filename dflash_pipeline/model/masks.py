"""Who may look at what when many blocks of one text are trained at once.

A slot of the block anchored at `a` sees the context strictly before `a`, because the anchor's own features do not
exist yet when it is drafted from, and the slots of its own block; never another block's. In a sliding layer it looks
at no later slot, and at no position further back than the window.

R rows, A blocks, K slots of a block, C context positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_pipeline.model.blocks import Blocks
from dflash_pipeline.model.config import SLIDING, DrafterConfig


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Consecutive blocks of every row, the context they need, and an additive mask for each kind of layer."""

    slots: slice
    """Of all slots of a row."""
    context: slice
    """Of the row's context."""
    masks: dict[str, Tensor]
    """[R, 1, slots, context + slots], 0 where visible and -inf elsewhere."""


def attention_pieces(blocks: Blocks, *, config: DrafterConfig, dtype: torch.dtype) -> tuple[Piece, ...]:
    """The cuts of a micro-batch's blocks with their masks, made once for all layers."""
    # An invalid block sees no context but keeps its own slots: a softmax over nothing would be NaN.
    limits_RA = blocks.anchors.masked_fill(~blocks.valid, 0)
    pieces = []
    for cut in blocks.cuts:
        taken = slice(cut.first_block, cut.end_block)
        visible = {
            kind: visible_keys(
                blocks.anchors[:, taken],
                limits_RA[:, taken],
                context=range(cut.first_context, cut.end_context),
                block_size=config.block_size,
                window=config.sliding_window if kind == SLIDING else None,
            )
            for kind in sorted(set(config.layer_types))
        }
        pieces.append(
            Piece(
                slots=slice(cut.first_block * config.block_size, cut.end_block * config.block_size),
                context=slice(cut.first_context, cut.end_context),
                masks={kind: _additive(mask, dtype)[:, None] for kind, mask in visible.items()},
            )
        )
    return tuple(pieces)


def visible_keys(
    anchors_RA: Tensor, limits_RA: Tensor, *, context: range, block_size: int, window: int | None
) -> Tensor:
    """[R, A * K, C + A * K]: which keys a slot sees, of these context positions and of all slots.

    `limits_RA` ends each block's context, which begins where `context` does; a window means sliding.
    """
    rows, num_blocks = anchors_RA.shape
    slot_K = torch.arange(block_size, device=anchors_RA.device)
    context_C = torch.arange(context.start, context.stop, device=anchors_RA.device)
    context_RQC = (context_C < limits_RA[..., None]).repeat_interleave(block_size, dim=1)
    inside_KK = torch.ones(block_size, block_size, dtype=torch.bool, device=anchors_RA.device)
    if window is not None:
        positions_RQ = (anchors_RA[..., None] + slot_K).flatten(1)
        context_RQC &= positions_RQ[..., None] - context_C < window
        back_KK = slot_K[:, None] - slot_K
        inside_KK = (back_KK >= 0) & (back_KK < window)
    same_AA = torch.eye(num_blocks, dtype=torch.bool, device=anchors_RA.device)
    own_QQ = (same_AA[:, None, :, None] & inside_KK[:, None, :]).flatten(2).flatten(0, 1)
    return torch.cat((context_RQC, own_QQ.expand(rows, -1, -1)), dim=2)


def visible_when_drafting(*, context_length: int, block_size: int, window: int, device: torch.device) -> Tensor:
    """[K, C + K] for a sliding layer at inference, where the block starts right after the context."""
    query_K = torch.arange(context_length, context_length + block_size, device=device)
    key_C = torch.arange(context_length + block_size, device=device)
    back = query_K[:, None] - key_C
    return (back >= 0) & (back < window)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
