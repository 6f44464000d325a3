"""The drafter against others' code: z-lab's layer put together from transformers' Qwen3 parts.

z-lab's own package is no dependency, and brings a command called `dflash` too: `tests/oracle/` asks it.
"""

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from dflash_pipeline.model.drafter import DrafterCache
from dflash_pipeline.model.zlab_json import to_zlab_json
from tests.tiny_models import strong_drafter, tiny_config

CONTEXT, BLOCK = 13, 8


class Reference(torch.nn.Module):
    """One block after a context, by transformers' norms, MLP and rotary positions, with attention written out."""

    def __init__(self, raw: dict, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.config = Qwen3Config(**raw)
        self.rotary = qwen3.Qwen3RotaryEmbedding(self.config)
        self.state = state

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        norm = qwen3.Qwen3RMSNorm(x.shape[-1], eps=self.config.rms_norm_eps)
        norm.weight.data = self.state[f"{name}.weight"]
        return norm(x)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.state[f"{name}.weight"].T

    def attention(self, at: str, x: torch.Tensor, context: torch.Tensor, *, window: int | None) -> torch.Tensor:
        both = torch.cat((context, x), dim=1)
        q = self.norm(f"{at}.q_norm", self.linear(f"{at}.q_proj", x).view(1, BLOCK, 4, 16)).transpose(1, 2)
        k = self.norm(f"{at}.k_norm", self.linear(f"{at}.k_proj", both).view(1, -1, 2, 16)).transpose(1, 2)
        v = self.linear(f"{at}.v_proj", both).view(1, -1, 2, 16).transpose(1, 2)
        cos, sin = self.rotary(x, torch.arange(CONTEXT + BLOCK)[None])
        q, _ = qwen3.apply_rotary_pos_emb(q, q, cos[:, CONTEXT:], sin[:, CONTEXT:])
        k, _ = qwen3.apply_rotary_pos_emb(k, k, cos, sin)
        scores = q @ qwen3.repeat_kv(k, 2).transpose(2, 3) / 4.0
        if window is not None:
            back = torch.arange(CONTEXT, CONTEXT + BLOCK)[:, None] - torch.arange(CONTEXT + BLOCK)
            scores = scores.masked_fill((back < 0) | (back >= window), float("-inf"))
        mixed = scores.softmax(-1) @ qwen3.repeat_kv(v, 2)
        return self.linear(f"{at}.o_proj", mixed.transpose(1, 2).reshape(1, BLOCK, -1))

    def forward(self, features: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        context = self.norm("hidden_norm", self.linear("fc", features))[None]
        x = block[None]
        for i, kind in enumerate(self.config.layer_types):
            window = self.config.sliding_window if kind == "sliding_attention" else None
            normed = self.norm(f"layers.{i}.input_layernorm", x)
            x = x + self.attention(f"layers.{i}.self_attn", normed, context, window=window)
            normed, mlp = self.norm(f"layers.{i}.post_attention_layernorm", x), f"layers.{i}.mlp"
            gated = torch.nn.functional.silu(self.linear(f"{mlp}.gate_proj", normed))
            x = x + self.linear(f"{mlp}.down_proj", gated * self.linear(f"{mlp}.up_proj", normed))
        return self.norm("norm", x)[0]


@pytest.mark.parametrize("window", [None, 6])
def test_a_block_equals_the_reference(window):
    config = tiny_config(window=window)
    drafter = strong_drafter(config)
    generator = torch.Generator().manual_seed(0)
    features, block = torch.randn(CONTEXT, 192, generator=generator), torch.randn(BLOCK, 64, generator=generator)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
        expected = Reference(to_zlab_json(config, "float32"), drafter.state_dict())(features, block)
    torch.testing.assert_close(drafter.draft(features, block, DrafterCache()), expected, rtol=1e-4, atol=1e-4)
