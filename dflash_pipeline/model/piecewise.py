"""Attention piece by piece on a CPU, as one operation: what a piece needs is copied together, used and dropped.

Left to autograd, every piece's copy of its keys and values would be kept until the backward pass, and every slice's
gradient would be a tensor as long as all keys: memory and time in the square of the number of documents.

Q slots of all blocks, T keys (context, then slots), N heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dflash_pipeline.model.masks import Piece

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_piecewise(
    q_1NQD: Tensor, k_1GTD: Tensor, v_1GTD: Tensor, pieces: Sequence[Piece], *, kind: str, num_context: int
) -> Tensor:
    """[1, N, Q, D]: every piece of blocks over the context it needs and its own slots."""
    mixed: Tensor = _Piecewise.apply(q_1NQD, k_1GTD, v_1GTD, pieces, kind, num_context)
    return mixed


class _Piecewise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, pieces: Sequence[Piece], kind: str, num_context: int
    ) -> Tensor:
        mixed = q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)
        sums = []
        for piece in pieces:
            keys, values = _gathered(k, piece, kind, num_context), _gathered(v, piece, kind, num_context)
            mixed[:, :, piece.slots], logsumexp = _forward(
                q[:, :, piece.slots], keys, values, 0.0, False, attn_mask=piece.masks[kind], scale=q.shape[-1] ** -0.5
            )
            sums.append(logsumexp)
        ctx.save_for_backward(q, k, v, mixed, *sums)
        ctx.pieces, ctx.kind, ctx.num_context = pieces, kind, num_context
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mixed, *sums = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for piece, logsumexp in zip(ctx.pieces, sums, strict=True):
            context, own = piece.contexts[ctx.kind], _own(piece, ctx.num_context)
            keys, values = (
                _gathered(k, piece, ctx.kind, ctx.num_context),
                _gathered(v, piece, ctx.kind, ctx.num_context),
            )
            grad_q[:, :, piece.slots], of_keys, of_values = _backward(
                grad[:, :, piece.slots],
                q[:, :, piece.slots],
                keys,
                values,
                mixed[:, :, piece.slots],
                logsumexp,
                0.0,
                False,
                attn_mask=piece.masks[ctx.kind],
                scale=q.shape[-1] ** -0.5,
            )
            length = context.stop - context.start
            for all_keys, of_piece in ((grad_k, of_keys), (grad_v, of_values)):
                all_keys[:, :, context] += of_piece[:, :, :length]
                all_keys[:, :, own] = of_piece[:, :, length:]
        return grad_q, grad_k, grad_v, None, None, None


def _own(piece: Piece, num_context: int) -> slice:
    return slice(num_context + piece.slots.start, num_context + piece.slots.stop)


def _gathered(x: Tensor, piece: Piece, kind: str, num_context: int) -> Tensor:
    return torch.cat((x[:, :, piece.contexts[kind]], x[:, :, _own(piece, num_context)]), dim=2)
