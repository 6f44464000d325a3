"""Random targets and drafters that are small enough for a test to run in milliseconds."""

from dataclasses import replace

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_pipeline.model.config import DrafterConfig, drafter_config
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import TrainingBatch
from dflash_pipeline.model.target import FrozenTarget

TAPS = (1, 3, 5)
VOCAB = 211
MASK_TOKEN = 210
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def tiny_model(seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    rope = {"rope_type": "default", "rope_theta": 50_000.0}
    config = Qwen3Config(**_SHAPE, head_dim=16, rope_parameters=rope, initializer_range=0.15, tie_word_embeddings=False)
    return Qwen3ForCausalLM(config)


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**_SHAPE, initializer_range=0.15))


def tiny_target(taps: tuple[int, ...] = TAPS) -> FrozenTarget:
    return FrozenTarget(tiny_model(), tap_layer_ids=taps)


def tiny_config(*, num_layers: int = 2, block_size: int = 8, window: int | None = None) -> DrafterConfig:
    """A window makes the first layer a sliding one."""
    config = drafter_config(
        tiny_model().config,
        num_layers=num_layers,
        block_size=block_size,
        tap_layer_ids=TAPS,
        mask_token_id=MASK_TOKEN,
        intermediate_size=None,
    )
    if window is None:
        return config
    kinds = ("sliding_attention", *config.layer_types[1:])
    return replace(config, layer_types=kinds, sliding_window=window)


def strong_drafter(config: DrafterConfig, seed: int = 1) -> Drafter:
    """Weights large enough that attention is far from uniform, so that a wrong mask or position shows."""
    drafter = Drafter.initialised(config, seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    return drafter


def random_batch(*, lengths: tuple[int, ...], num_anchors: tuple[int, ...], seed: int = 0) -> TrainingBatch:
    """Rows of random tokens, all supervised but the first three, with sorted random anchors."""
    random = np.random.default_rng(seed)
    rows, width, most = len(lengths), max(lengths), max(num_anchors)
    ids = torch.zeros(rows, width, dtype=torch.long)
    mask = torch.zeros(rows, width, dtype=torch.bool)
    anchors = torch.zeros(rows, most, dtype=torch.long)
    valid = torch.zeros(rows, most, dtype=torch.bool)
    for row, (length, count) in enumerate(zip(lengths, num_anchors, strict=True)):
        ids[row, :length] = torch.from_numpy(random.integers(0, VOCAB - 1, length))
        mask[row, 3:length] = True
        anchors[row, :count] = torch.from_numpy(np.sort(random.choice(np.arange(3, length - 1), count, replace=False)))
        valid[row, :count] = True
    return TrainingBatch(input_ids=ids, loss_mask=mask, lengths=torch.tensor(lengths), anchors=anchors, valid=valid)
