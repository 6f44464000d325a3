"""The shape of a drafter, and how it follows from a target. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from dflash_pipeline.contracts.errors import ContractBroken, Refused

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

FULL, SLIDING = "full_attention", "sliding_attention"
_POSITIVE = (
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "max_position_embeddings",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterConfig:
    """Everything a drafter's tensors and its use depend on. Complete: nothing is guessed when it is read back."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """The target's: its embedding and output head are the drafter's too."""
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    block_size: int
    """Tokens of a block, the anchor among them: a round drafts block_size - 1 tokens."""
    tap_layer_ids: tuple[int, ...]
    """Target layers, 0-based, whose outputs are the features, in this order."""
    mask_token_id: int
    num_target_layers: int
    layer_types: tuple[str, ...]
    """`full_attention` (both ways inside a block) or `sliding_attention` (causal inside a block, with a window)."""
    sliding_window: int | None
    """Positions a sliding layer sees back, the query's own among them."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_taps()
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ContractBroken(
                f"mask token {self.mask_token_id} has no row among {self.vocab_size} embeddings",
                where="drafter.mask_token_id",
                fix="use the tokenizer's mask token or an unused row of the target's embedding table",
            )
        self._check_layers()

    def _check_sizes(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if not value > 0:
                raise ContractBroken(f"{name} {value}", where=f"drafter.{name}", fix="use a positive number")
        if self.block_size < 2:
            raise ContractBroken(
                f"block size {self.block_size} drafts nothing", where="drafter.block_size", fix="use at least 2"
            )
        if self.block_size > self.max_position_embeddings:
            raise ContractBroken(
                f"block size {self.block_size} with {self.max_position_embeddings} positions",
                where="drafter.block_size",
                fix="a block fits into the target's context: use 8 or 16",
            )
        if self.num_heads % self.num_kv_heads:
            raise ContractBroken(
                f"{self.num_kv_heads} key-value heads do not divide {self.num_heads} heads",
                where="drafter.num_kv_heads",
                fix="every key-value head serves the same number of heads",
            )
        if self.head_dim % 2:
            raise ContractBroken(
                f"head_dim {self.head_dim} is odd", where="drafter.head_dim", fix="rotary positions need pairs"
            )

    def _check_taps(self) -> None:
        taps = self.tap_layer_ids
        if not taps or any(b <= a for a, b in pairwise(taps)):
            raise ContractBroken(
                f"tap layers {list(taps)} are {'none' if not taps else 'repeated or not ascending'}",
                where="drafter.tap_layer_ids",
                fix="give layer numbers, ascending without repeats",
            )
        # The output of the last layer reaches us normalised in some targets and raw in others.
        if taps[0] < 0 or taps[-1] > self.num_target_layers - 2:
            raise ContractBroken(
                f"tap layers {list(taps)} of a target with {self.num_target_layers} layers",
                where="drafter.tap_layer_ids",
                fix=f"use layers 0 to {self.num_target_layers - 2}: the last layer cannot be tapped",
            )

    def _check_layers(self) -> None:
        unknown = sorted(set(self.layer_types) - {FULL, SLIDING})
        if unknown or len(self.layer_types) != self.num_layers:
            raise ContractBroken(
                f"layer types {list(self.layer_types)} are not one for each of {self.num_layers} layers",
                where="drafter.layer_types",
                fix=f"give {FULL} or {SLIDING} for each layer",
            )
        if SLIDING in self.layer_types and (self.sliding_window is None or self.sliding_window < 1):
            raise ContractBroken(
                f"sliding layers without a window ({self.sliding_window})",
                where="drafter.sliding_window",
                fix="give the window in positions, at least 1",
            )
        if SLIDING not in self.layer_types and self.sliding_window is not None:
            raise ContractBroken(
                f"a window of {self.sliding_window} and no layer that slides",
                where="drafter.sliding_window",
                fix=f"set drafter.layer_types to {SLIDING} where it is to hold, or leave the window out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """How a drafter is run while it trains. Changes memory and time, and the last bits of a result."""

    recompute: bool = False
    """A layer keeps what goes into it only, and runs again in the backward pass (activation checkpointing)."""
    compiled: bool = False
    """torch.compile around each layer's attention, once for all sizes of micro-batches."""


PLAIN = Execution()
"""Every activation kept, nothing compiled."""


def default_tap_layer_ids(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """As many taps as the drafter has layers, spread evenly from layer 1 to N - 3; the middle layer for one.

    Refused where that repeats a layer, with taps that would do.
    """
    if num_layers == 1:
        taps = [num_target_layers // 2]
    else:
        taps = [round(1 + i * (num_target_layers - 4) / (num_layers - 1)) for i in range(num_layers)]
    last = num_target_layers - 2
    if all(a < b for a, b in pairwise(taps)) and taps[-1] <= last:
        return tuple(taps)
    # Some targets have no layer to tap at all, and many have fewer than the drafter has layers.
    count = min(num_layers, last + 1)
    proposed = [round(i * last / max(count - 1, 1)) for i in range(count)]
    raise Refused(
        f"the rule for {num_layers} taps gives layers {taps} of a target with {num_target_layers}",
        where="drafter.tap_layer_ids",
        fix=f"the target is too shallow for the rule: set tap_layer_ids to {proposed}, or to others from 0 to {last}"
        if proposed
        else "use a deeper target: the last layer cannot be tapped, and this one has no other",
    )


def default_mask_token_id(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """The tokenizer's mask token, otherwise the first embedding row no token uses. Never padding or an end mark."""
    mask = tokenizer.mask_token_id
    if mask is not None and mask < vocab_size:
        return int(mask)
    unused = max(tokenizer.get_vocab().values()) + 1
    if unused < vocab_size:
        return unused
    raise Refused(
        f"the tokenizer has no mask token and uses all {vocab_size} embedding rows",
        where="drafter.mask_token_id",
        fix="set mask_token_id to a token that does not occur in the data",
    )


def drafter_config(
    target_config: PreTrainedConfig,
    *,
    num_layers: int,
    block_size: int,
    tap_layer_ids: tuple[int, ...] | None,
    mask_token_id: int,
    intermediate_size: int | None,
    layer_types: tuple[str, ...] | None = None,
    sliding_window: int | None = None,
) -> DrafterConfig:
    """The drafter of a target: its width, heads, rotary base and vocabulary; `None` follows the target or the rule."""
    text = target_config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    taps = default_tap_layer_ids(text.num_hidden_layers, num_layers) if tap_layer_ids is None else tap_layer_ids
    return DrafterConfig(
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size if intermediate_size is None else intermediate_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocab_size=text.vocab_size,
        rms_norm_eps=getattr(text, "rms_norm_eps", 1e-6),
        rope_theta=target_rope_theta(text),
        max_position_embeddings=text.max_position_embeddings,
        block_size=block_size,
        tap_layer_ids=taps,
        mask_token_id=mask_token_id,
        num_target_layers=text.num_hidden_layers,
        layer_types=(FULL,) * num_layers if layer_types is None else layer_types,
        sliding_window=sliding_window,
    )


def target_rope_theta(text: PreTrainedConfig) -> float:
    """The rotary base of a target's full-attention layers, which its drafter takes over."""
    rope = getattr(text, "rope_parameters", None) or {}
    rope = rope.get(FULL, rope)  # some targets hold one set for each layer type
    theta = rope.get("rope_theta") or getattr(text, "rope_theta", None)
    return float(theta or 10_000.0)
