"""Attention of the drafter: queries from the block alone, keys and values from context and block by the same weights.

R rows, Q slots of all blocks, T keys (context, then slots), H hidden, N heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.norm import RMSNorm

Rotation = tuple[Tensor, Tensor]
"""Cosines and signed sines [.., T, 1, D] of positions, ready for `rotate`."""


class Rotary(nn.Module):
    """Rotary positions. The inverse frequencies stay float32 whatever the module is cast to, and are no parameter."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self._head_dim = head_dim
        self._theta = theta
        self.register_buffer("inv_freq", self._frequencies(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # In bfloat16 they would be off by 0.4 %: fine at position 10, another rotation altogether at 1,000.
        super()._apply(fn, recurse)
        self.inv_freq = self._frequencies().to(self.inv_freq.device)
        return self

    def _frequencies(self) -> Tensor:
        powers = torch.arange(0, self._head_dim, 2, dtype=torch.float32, device="cpu") / self._head_dim
        return 1.0 / self._theta**powers

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        angles = positions[..., None, None].float() * self.inv_freq
        sines = angles.sin()
        return torch.cat((angles.cos(),) * 2, -1).to(dtype), torch.cat((-sines, sines), -1).to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate pairs (i, i + D/2). Swapping halves is one `roll`, as the sines carry the sign."""
    cosines, sines = rotation
    return torch.addcmul(x * cosines, x.roll(x.shape[-1] // 2, -1), sines)


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys. How positions and masks come about is the caller's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def queries(self, x_RQH: Tensor, rotation: Rotation) -> Tensor:
        """[R, N, Q, D]"""
        q_RQND = self.q_proj(x_RQH).unflatten(-1, (-1, self.head_dim))
        return rotate(self.q_norm(q_RQND), rotation).transpose(1, 2)

    def keys_values(self, x_RTH: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """[R, G, T, D] each."""
        k_RTGD = self.k_proj(x_RTH).unflatten(-1, (-1, self.head_dim))
        v_RTGD = self.v_proj(x_RTH).unflatten(-1, (-1, self.head_dim))
        return rotate(self.k_norm(k_RTGD), rotation).transpose(1, 2), v_RTGD.transpose(1, 2)

    def attend(self, q_RNQD: Tensor, k_RGTD: Tensor, v_RGTD: Tensor, mask: Tensor | None) -> Tensor:
        """[R, Q, H]"""
        return self.project(
            functional.scaled_dot_product_attention(q_RNQD, k_RGTD, v_RGTD, attn_mask=mask, enable_gqa=True)
        )

    def project(self, mixed_1NQD: Tensor) -> Tensor:
        """[1, Q, H]"""
        out: Tensor = self.o_proj(mixed_1NQD.transpose(1, 2).flatten(2))
        return out
