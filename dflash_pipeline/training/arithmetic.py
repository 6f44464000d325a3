"""How much arithmetic a step cannot do without, and how much a device could have done meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.training.collate import PreparedBatch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PEAKS = {"A100": 312e12, "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}
"""Dense bfloat16 operations a second by data sheets. The first name that is part of the device's counts."""

BACKWARD_OF_ATTENTION = 3.5
"""Its forward counted once and its backward, which makes the scores again, two and a half times."""


def peak_operations(device: torch.device) -> float:
    """Operations a second; NaN for a device whose peak is not known, a CPU's among them."""
    if device.type != "cuda":
        return math.nan
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), math.nan)


def layer_weights(config: PreTrainedConfig) -> int:
    """Weights that a token passes through in one layer of a target; of experts, those that it is sent to."""
    text = config.get_text_config(decoder=True)
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    queries, keys = text.num_attention_heads * head, text.num_key_value_heads * head
    experts = getattr(text, "num_experts_per_tok", None)
    inner = experts * text.moe_intermediate_size if experts else text.intermediate_size
    return int(text.hidden_size * (2 * queries + 2 * keys + 3 * inner))


def operations(config: DrafterConfig, target_layer_weights: int, batches: Sequence[PreparedBatch]) -> float:
    """Floating-point operations of one rank's share: two a weight and row of each product, and attention's.

    A drafter's weight is used three times (forward, by input, by weight), the frozen head's twice. What is computed
    again to save memory is not counted. Features from disk cost the target nothing.
    """
    return math.fsum(_of_micro_batch(config, target_layer_weights, prepared) for prepared in batches)


def _of_micro_batch(config: DrafterConfig, target_layer_weights: int, prepared: PreparedBatch) -> float:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    rows, width = prepared.batch.input_ids.shape
    blocks, taps = prepared.batch.blocks, len(config.tap_layer_ids)
    slots, context = blocks.anchors.numel() * config.block_size, blocks.num_context
    target = 0.0
    if prepared.batch.features is None:
        layers = max(config.tap_layer_ids) + 1
        target = layers * (2.0 * rows * width * target_layer_weights + 2 * rows * width**2 * queries)
    of_slots = config.num_layers * slots * hidden * (2 * queries + 2 * keys + 3 * inner)
    of_context = context * hidden * (taps * hidden + config.num_layers * 2 * keys)
    seen = float((blocks.context_ends - blocks.context_starts).sum()) * config.block_size + slots * config.block_size
    attention = config.num_layers * 2 * 2 * seen * queries * BACKWARD_OF_ATTENTION
    head_products = 2 * 2 * int((prepared.weights > 0).sum()) * config.vocab_size * hidden
    return target + 3 * 2 * (of_slots + of_context) + attention + head_products
