"""The DFlash drafter: a small decoder that fills a block of masked slots in one pass, given the target's features.

It owns no embedding and no output head; both are the frozen target's. Its tensors have z-lab's names.

R rows, W positions of a row, C context positions, A blocks, K slots of a block, Q = A * K, H hidden, F features
(taps * H).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dflash_pipeline.model.attention import Attention, Rotary, Rotation
from dflash_pipeline.model.blocks import Blocks
from dflash_pipeline.model.config import PLAIN, SLIDING, DrafterConfig, Execution
from dflash_pipeline.model.masks import visible_when_drafting
from dflash_pipeline.model.mixing import Mixer, mixer_of
from dflash_pipeline.model.norm import RMSNorm

INITIAL_DEVIATION = 0.02


@dataclass(kw_only=True, slots=True, eq=False)
class DrafterCache:
    """Keys and values of the context drafted from so far, per layer [1, G, C, D]. A block's own are never kept."""

    length: int = 0
    """Context positions held; the next features start here."""
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class MLP(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm layer. The context goes into keys and values as it is: not normed here, never updated."""

    def __init__(self, config: DrafterConfig, kind: str, *, compiled: bool) -> None:
        super().__init__()
        self.kind = kind
        # Not the attention between them, which goes by pieces on a CPU and is compiled by itself on CUDA.
        self._read = torch.compile(self._to_attend, dynamic=True) if compiled else self._to_attend
        self._write = torch.compile(self._with_mixed, dynamic=True) if compiled else self._with_mixed
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_1QH: Tensor, context_1CH: Tensor, *, slots: Rotation, keys: Rotation, mix: Mixer) -> Tensor:
        q, k, v = self._read(x_1QH, context_1CH, slots, keys)
        return self._write(x_1QH, mix(q, k, v, self.kind))

    def _to_attend(
        self, x_1QH: Tensor, context_1CH: Tensor, slots: Rotation, keys: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.input_layernorm(x_1QH)
        k, v = self.self_attn.keys_values(torch.cat((context_1CH, normed), dim=1), keys)
        return self.self_attn.queries(normed, slots), k, v

    def _with_mixed(self, x_1QH: Tensor, mixed_1NQD: Tensor) -> Tensor:
        return self._with_mlp(x_1QH + self.self_attn.project(mixed_1NQD))

    def draft(self, x_1KH: Tensor, context: tuple[Tensor, Tensor], *, slots: Rotation, window: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x_1KH)
        attention = self.self_attn
        q = attention.queries(normed, slots)
        own = attention.keys_values(normed, slots)
        k, v = (torch.cat(pair, dim=2) for pair in zip(context, own, strict=True))
        return self._with_mlp(x_1KH + attention.attend(q, k, v, window if self.kind == SLIDING else None))

    def _with_mlp(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Drafter(nn.Module):
    """`forward` trains many blocks of many rows at once; `draft` drafts one block with a cache. Both agree."""

    def __init__(self, config: DrafterConfig, execution: Execution = PLAIN) -> None:
        super().__init__()
        self.config = config
        self.execution = execution
        self.fc = nn.Linear(len(config.tap_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers: Sequence[Layer] = nn.ModuleList(
            Layer(config, kind, compiled=execution.compiled) for kind in config.layer_types
        )  # type: ignore[assignment]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config.head_dim, config.rope_theta)

    @classmethod
    def initialised(cls, config: DrafterConfig, seed: int, execution: Execution = PLAIN) -> Drafter:
        """A new drafter: norms at one, every other weight normal; the same for the same seed, on the CPU."""
        drafter = cls(config, execution)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in drafter.parameters():
                if parameter.ndim == 1:
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, INITIAL_DEVIATION, generator=generator)
        return drafter

    def forward(self, features_RWF: Tensor, block_embeddings_AKH: Tensor, blocks: Blocks) -> Tensor:
        """Hidden states [A, K, H] of blocks that each see only the features before their own anchor.

        `features_RWF` are those of the batch's rows, at least as far as `blocks.contexts` reach.
        """
        dtype = self.norm.weight.dtype
        mix = mixer_of(blocks, self.config, dtype=dtype)
        context_1CH = self.context(_packed(features_RWF, blocks))[None]

        slot_K = torch.arange(self.config.block_size, device=blocks.anchors.device)
        positions_AK = (blocks.context_ends - blocks.context_starts)[:, None] + slot_K
        keys = self.rotary(torch.cat((blocks.context_positions, positions_AK.flatten()))[None], dtype)
        slots = (keys[0][:, blocks.num_context :], keys[1][:, blocks.num_context :])

        x_1QH = block_embeddings_AKH.flatten(0, 1)[None].to(dtype)
        for layer in self.layers:
            x_1QH = self._through(layer, x_1QH, context_1CH, slots=slots, keys=keys, mix=mix)
        hidden: Tensor = self.norm(x_1QH)
        return hidden.view(block_embeddings_AKH.shape)

    @torch.no_grad()
    def draft(self, features_SF: Tensor, block_embeddings_KH: Tensor, cache: DrafterCache) -> Tensor:
        """Hidden states [K, H] of the block right after all context. `features_SF` are new; the cache takes them in."""
        dtype = self.norm.weight.dtype
        self._extend(cache, features_SF)
        positions = torch.arange(cache.length, cache.length + self.config.block_size, device=features_SF.device)
        slots = self.rotary(positions, dtype)
        window = self._window(cache.length, features_SF.device)
        x_1KH = block_embeddings_KH[None].to(dtype)
        for layer, context in zip(self.layers, cache.layers, strict=True):
            x_1KH = layer.draft(x_1KH, context, slots=slots, window=window)
        hidden_1KH: Tensor = self.norm(x_1KH)
        return hidden_1KH[0]

    def context(self, features: Tensor) -> Tensor:
        """Features [.., F] to the context [.., H] that every layer reads."""
        context: Tensor = self.hidden_norm(self.fc(features))
        return context

    def _through(
        self, layer: Layer, x_1QH: Tensor, context_1CH: Tensor, *, slots: Rotation, keys: Rotation, mix: Mixer
    ) -> Tensor:
        run = partial(layer, slots=slots, keys=keys, mix=mix)
        if self.execution.recompute and torch.is_grad_enabled():
            again: Tensor = checkpoint(run, x_1QH, context_1CH, use_reentrant=False)
            return again
        out: Tensor = run(x_1QH, context_1CH)
        return out

    def _extend(self, cache: DrafterCache, features_SF: Tensor) -> None:
        positions = torch.arange(cache.length, cache.length + features_SF.shape[0], device=features_SF.device)
        rotation = self.rotary(positions, self.norm.weight.dtype)
        context_1SH = self.context(features_SF)[None]
        new = [layer.self_attn.keys_values(context_1SH, rotation) for layer in self.layers]
        if cache.layers:
            new = [
                (torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2))
                for (old_k, old_v), (k, v) in zip(cache.layers, new, strict=True)
            ]
        cache.layers = new
        cache.length += features_SF.shape[0]

    def _window(self, context_length: int, device: torch.device) -> Tensor | None:
        if SLIDING not in self.config.layer_types or self.config.sliding_window is None:
            return None
        return visible_when_drafting(
            context_length=context_length,
            block_size=self.config.block_size,
            window=self.config.sliding_window,
            device=device,
        )


def _packed(features_RWF: Tensor, blocks: Blocks) -> Tensor:
    """[C, F]"""
    parts = [features_RWF[context.row, context.first : context.end] for context in blocks.contexts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
