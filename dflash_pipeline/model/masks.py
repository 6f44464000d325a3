"""Who may look at what when many blocks of many documents are trained at once.

A slot of the block anchored at `a` sees its document's context strictly before `a`, because the anchor's own features
do not exist yet when it is drafted from, and the slots of its own block; never another block's. In a sliding layer it
looks at no later slot, and at no position further back than the window.

One function says so, for every kind of attention: FlexAttention calls it as it is, and dense masks are its values.

A blocks, K slots of a block, C positions of the packed context. Keys are the context, then all slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_pipeline.model.blocks import Blocks, Cut
from dflash_pipeline.model.config import SLIDING, DrafterConfig

Sees = Callable[[Tensor | int, Tensor | int, Tensor, Tensor], Tensor]
"""Of row, head, slot and key, as FlexAttention has it (row and head do not matter): whether the slot sees the key."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Consecutive blocks of one document, and for each kind of layer the context they need and an additive mask."""

    slots: slice
    contexts: dict[str, slice]
    masks: dict[str, Tensor]
    """[slots, context + slots], 0 where visible and -inf elsewhere."""


def window_of(kind: str, config: DrafterConfig) -> int | None:
    """Positions that a layer of this kind looks back, itself counted; `None` for all."""
    return config.sliding_window if kind == SLIDING else None


def sees(blocks: Blocks, *, block_size: int, window: int | None) -> Sees:
    """The rule of this module, as a function of whole numbers or of tensors of them that broadcast."""
    starts, ends = blocks.context_starts, blocks.context_ends
    # As a tensor: a compiled kernel would be built anew for every other number.
    num_context = ends[-1]

    def slot_sees_key(_row: Tensor | int, _head: Tensor | int, slot: Tensor, key: Tensor) -> Tensor:
        block = slot // block_size
        other = key - num_context
        # The context ends before any slot's key begins, so that no key is taken for both.
        context = (key >= starts[block]) & (key < ends[block])
        own = other // block_size == block
        if window is None:
            return context | own
        place = slot % block_size
        back = place - other % block_size
        near = ends[block] + place - key < window
        return (context & near) | (own & (back >= 0) & (back < window))

    return slot_sees_key


def attention_pieces(blocks: Blocks, *, config: DrafterConfig, dtype: torch.dtype) -> tuple[Piece, ...]:
    """The cuts of a micro-batch's blocks with their masks, made once for all layers."""
    kinds = sorted(set(config.layer_types))
    rules = {kind: sees(blocks, block_size=config.block_size, window=window_of(kind, config)) for kind in kinds}
    pieces = []
    for cut in blocks.cuts:
        contexts = {kind: _context(cut, window_of(kind, config)) for kind in kinds}
        slots = slice(cut.first_block * config.block_size, cut.end_block * config.block_size)
        keys = {
            kind: _keys(context, slots, num_context=blocks.num_context, device=blocks.anchors.device)
            for kind, context in contexts.items()
        }
        masks = {
            kind: _dense(rules[kind], slots, keys[kind], block_size=config.block_size, kind=kind, dtype=dtype)
            for kind in kinds
        }
        pieces.append(Piece(slots=slots, contexts=contexts, masks=masks))
    return tuple(pieces)


def visible_when_drafting(*, context_length: int, block_size: int, window: int, device: torch.device) -> Tensor:
    """[K, C + K] for a sliding layer at inference, where the block starts right after the context."""
    query_K = torch.arange(context_length, context_length + block_size, device=device)
    key_C = torch.arange(context_length + block_size, device=device)
    back = query_K[:, None] - key_C
    return (back >= 0) & (back < window)


def _context(cut: Cut, window: int | None) -> slice:
    """The part of the packed context that some slot of the cut sees."""
    first = cut.first_context
    if window is not None:
        first = max(first, cut.common_context - window + 1)
    return slice(min(first, cut.end_context), cut.end_context)


def _keys(context: slice, slots: slice, *, num_context: int, device: torch.device) -> Tensor:
    own = torch.arange(slots.start, slots.stop, device=device) + num_context
    return torch.cat((torch.arange(context.start, context.stop, device=device), own))


def _dense(rule: Sees, slots: slice, keys_T: Tensor, *, block_size: int, kind: str, dtype: torch.dtype) -> Tensor:
    """[slots, T] additive. In a full layer all slots of a block see the same, and the rule is asked once for them."""
    alike = 1 if kind == SLIDING else block_size
    slots_Q = torch.arange(slots.start, slots.stop, alike, device=keys_T.device)
    visible_QT = rule(0, 0, slots_Q[:, None], keys_T)
    additive_QT = torch.zeros(visible_QT.shape, dtype=dtype, device=keys_T.device)
    return additive_QT.masked_fill_(~visible_QT, float("-inf")).repeat_interleave(alike, dim=0)
