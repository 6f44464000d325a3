"""Random targets and drafters that are small enough for a test to run in milliseconds."""

from dataclasses import replace

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_pipeline.model.blocks import TrainingBatch, end_to_end, in_rows, place_blocks
from dflash_pipeline.model.config import DrafterConfig, drafter_config
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import block_embeddings, target_outputs
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
    tokens, anchors = random_samples(lengths=lengths, num_anchors=num_anchors, seed=seed)
    return batch_of_rows(tokens, anchors)


def random_samples(
    *, lengths: tuple[int, ...], num_anchors: tuple[int, ...], seed: int = 0
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    random = np.random.default_rng(seed)
    tokens, anchors = [], []
    for length, count in zip(lengths, num_anchors, strict=True):
        tokens.append(random.integers(0, VOCAB - 1, length))
        anchors.append(np.sort(random.choice(np.arange(3, length - 1), count, replace=False)))
    return tokens, anchors


def batch_of_rows(tokens: list[np.ndarray], anchors: list[np.ndarray]) -> TrainingBatch:
    lengths = [row.size for row in tokens]
    ids = torch.zeros(len(tokens), max(lengths), dtype=torch.long)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, values in enumerate(tokens):
        ids[row, : values.size] = torch.from_numpy(values)
        mask[row, 3 : values.size] = True
    documents = in_rows(lengths)
    blocks = place_blocks(anchors, documents, width=max(lengths))
    return TrainingBatch(input_ids=ids, loss_mask=mask, documents=documents, blocks=blocks)


def batch_of_documents(tokens: list[np.ndarray], anchors: list[np.ndarray], *, padding: int = 0) -> TrainingBatch:
    """The same samples in one row."""
    lengths = [row.size for row in tokens]
    width = sum(lengths) + padding
    ids = torch.zeros(1, width, dtype=torch.long)
    mask = torch.zeros(1, width, dtype=torch.bool)
    ids[0, : sum(lengths)] = torch.from_numpy(np.concatenate(tokens))
    documents = end_to_end(lengths)
    for document in documents:
        mask[0, document.first + 3 : document.end] = True
    blocks = place_blocks(anchors, documents, width=width)
    return TrainingBatch(input_ids=ids, loss_mask=mask, documents=documents, blocks=blocks)


def drafter_inputs(target: FrozenTarget, batch: TrainingBatch, config: DrafterConfig):
    """What a drafter's forward takes besides the blocks."""
    return target_outputs(target, batch, needs_last=False)[0], block_embeddings(target, batch, config)
