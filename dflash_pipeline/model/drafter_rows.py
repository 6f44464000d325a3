"""Drafting for many prompts at once, each row at a length of its own: what `Drafter.draft` does for one.

R rows, S new context positions of each row, K slots of a block, T columns, F features, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_pipeline.model.config import SLIDING
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.rows import Place, Rows


@torch.no_grad()
def extend_rows(
    drafter: Drafter, cache: Rows, features_RSF: Tensor, counts: Sequence[int], rows: Sequence[int]
) -> None:
    """Take features into the context of these rows: of each the first `counts`, the rest is padding."""
    place = cache.place(features_RSF.shape[1], rows=rows, device=features_RSF.device)
    rotation = drafter.rotary(place.columns, drafter.norm.weight.dtype)
    context_RSH = drafter.context(features_RSF)
    for number, layer in enumerate(drafter.layers):
        cache.write(number, *layer.self_attn.keys_values(context_RSH, rotation), place)
    for row, count in zip(rows, counts, strict=True):
        cache.lengths[row] += count


@torch.no_grad()
def draft_rows(drafter: Drafter, cache: Rows, block_embeddings_RKH: Tensor) -> Tensor:
    """Hidden states [R, K, H] of a block right after each row's context. The context stays as it is."""
    dtype = drafter.norm.weight.dtype
    place = cache.place(block_embeddings_RKH.shape[1], device=block_embeddings_RKH.device)
    slots = drafter.rotary(place.columns, dtype)
    masks = {kind: _visible(place, drafter, kind)[:, None] for kind in set(drafter.config.layer_types)}
    x_RKH = block_embeddings_RKH.to(dtype)
    for number, layer in enumerate(drafter.layers):
        attention, normed = layer.self_attn, layer.input_layernorm(x_RKH)
        k, v = cache.write(number, *attention.keys_values(normed, slots), place)
        mixed = attention.attend(attention.queries(normed, slots), k, v, masks[layer.kind])
        x_RKH = x_RKH + mixed
        x_RKH = x_RKH + layer.mlp(layer.post_attention_layernorm(x_RKH))
    hidden_RKH: Tensor = drafter.norm(x_RKH)
    return hidden_RKH


def _visible(place: Place, drafter: Drafter, kind: str) -> Tensor:
    """[R, K or 1, T] bool: a row's context and its own block; in a sliding layer no later slot, and only near ones."""
    if kind != SLIDING or drafter.config.sliding_window is None:
        return place.causal[:, -1:]
    column_T = torch.arange(place.width, device=place.columns.device)
    return place.causal & (place.columns[..., None] - column_T < drafter.config.sliding_window)
