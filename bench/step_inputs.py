"""Inputs of one training step in a file, so that several trainers take the same step: random, of a stated shape.

R rows, S tokens of a row, A anchors of a row, K taps, H hidden, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.zlab_json import from_zlab_json, to_zlab_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Dims:
    """Sizes of a target and its drafter."""

    hidden: int
    inter: int
    heads: int
    kv: int
    head_dim: int
    vocab: int
    target_layers: int
    taps: tuple[int, ...]
    layers: int
    theta: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Rows of one step."""

    lengths: tuple[int, ...]
    anchors: int
    """Of each row; a row with fewer places has fewer."""
    block: int
    gamma: float
    seed: int
    prompt_share: float
    """Of a row, unsupervised at its start."""


DIMS = {
    "tiny": Dims(
        hidden=128,
        inter=384,
        heads=4,
        kv=2,
        head_dim=32,
        vocab=1024,
        target_layers=4,
        taps=(0, 1, 2),
        layers=2,
        theta=1e4,
    ),
    "small": Dims(
        hidden=256,
        inter=768,
        heads=8,
        kv=4,
        head_dim=32,
        vocab=32_000,
        target_layers=12,
        taps=(1, 5, 9),
        layers=3,
        theta=1e6,
    ),
    "8b": Dims(
        hidden=4096,
        inter=12_288,
        heads=32,
        kv=8,
        head_dim=128,
        vocab=151_936,
        target_layers=36,
        taps=(1, 9, 17, 25, 33),
        layers=5,
        theta=1e6,
    ),
}
"""`8b` has the sizes of Qwen3-8B's drafter, for a card."""
_D_LENGTHS = (142, 155, 163, 178, 190, 204, 213, 226, 241, 259, 277, 301, 330, 368, 421, 512)
_LONG_LENGTHS = (96, 180, 260, 700, 1_500)
SHAPES = {
    "a": Shape(lengths=(1024,), anchors=64, block=8, gamma=4.0, seed=11, prompt_share=0.25),
    "b": Shape(lengths=(128, 320, 640, 1024), anchors=64, block=8, gamma=4.0, seed=12, prompt_share=0.25),
    "d": Shape(lengths=_D_LENGTHS, anchors=32, block=8, gamma=4.0, seed=14, prompt_share=0.45),
    "e": Shape(lengths=_LONG_LENGTHS, anchors=64, block=16, gamma=7.0, seed=15, prompt_share=0.3),
    "f": Shape(lengths=(2048,), anchors=128, block=16, gamma=7.0, seed=16, prompt_share=0.2),
    "g": Shape(lengths=(384,) * 8, anchors=48, block=8, gamma=4.0, seed=17, prompt_share=0.1),
}
"""`a`, `b` and `d` are those that others' figures are known of; `e`, `f` and `g` are others, so that nothing is tuned
to three shapes: long rows beside short ones, one long row, equal rows."""


def drafter_config_of(dims: Dims, block: int) -> DrafterConfig:
    return DrafterConfig(
        hidden_size=dims.hidden,
        intermediate_size=dims.inter,
        num_layers=dims.layers,
        num_heads=dims.heads,
        num_kv_heads=dims.kv,
        head_dim=dims.head_dim,
        vocab_size=dims.vocab,
        rms_norm_eps=1e-6,
        rope_theta=dims.theta,
        max_position_embeddings=16_384,
        block_size=block,
        tap_layer_ids=dims.taps,
        mask_token_id=dims.vocab - 1,
        num_target_layers=dims.target_layers,
        layer_types=("full_attention",) * dims.layers,
        sliding_window=None,
    )


def write_inputs(folder: Path, dims: Dims, shape: Shape) -> tuple[Path, Path]:
    """`inputs.safetensors` and `config.json` of a shape, equal for equal arguments."""
    config = drafter_config_of(dims, shape.block)
    random = np.random.default_rng(shape.seed)
    generator = torch.Generator().manual_seed(shape.seed)
    rows, width = len(shape.lengths), max(shape.lengths)
    real = torch.arange(width) < torch.tensor(shape.lengths)[:, None]
    starts = torch.tensor([int(shape.prompt_share * length) for length in shape.lengths])
    anchors, keep = _anchors(random, shape, starts.tolist())

    def normal(*size: int, deviation: float) -> Tensor:
        return torch.randn(*size, generator=generator) * deviation

    drafter = Drafter.initialised(config, shape.seed)
    tensors = {
        "ids": torch.from_numpy(random.integers(0, dims.vocab - 1, (rows, width))) * real,
        "loss_mask": real & (torch.arange(width) >= starts[:, None]),
        "lengths": torch.tensor(shape.lengths),
        "feat": normal(rows, width, len(dims.taps) * dims.hidden, deviation=1.0) * real[..., None],
        "last": normal(rows, width, dims.hidden, deviation=1.0) * real[..., None],
        "anchors": anchors,
        "keep": keep,
        "embed": normal(dims.vocab, dims.hidden, deviation=0.02),
        "head": normal(dims.vocab, dims.hidden, deviation=0.02),
        "final_norm": torch.ones(dims.hidden),
    }
    tensors |= {f"draft.{name}": tensor.contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, folder / "inputs.safetensors")
    (folder / "config.json").write_text(json.dumps(to_zlab_json(config, "float32"), indent=2) + "\n", encoding="utf-8")
    return folder / "inputs.safetensors", folder / "config.json"


def read_inputs(inputs: Path, config: Path) -> tuple[dict[str, Tensor], DrafterConfig]:
    """Tensors of a file in the types a step works in: whole numbers, masks as bool, everything else in float32."""
    try:
        found, shape = load_file(inputs), from_zlab_json(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, ValueError, SafetensorError) as error:
        raise SystemExit(f"{inputs} with {config} cannot be read: {error}") from None
    missing = [name for name in (*_WHOLE, *_MASKS, "feat", "embed", "head") if name not in found]
    if missing:
        raise SystemExit(f"{inputs} has no {', '.join(missing)}")
    return {name: _typed(name, tensor) for name, tensor in found.items()}, shape


_WHOLE, _MASKS = ("ids", "lengths", "anchors"), ("loss_mask", "keep")


def _typed(name: str, tensor: Tensor) -> Tensor:
    if name in _MASKS:
        return tensor > 0.5
    return tensor.long() if name in _WHOLE else tensor.float()


def initial_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The drafter's, by z-lab's names."""
    return {name.removeprefix("draft."): tensor for name, tensor in tensors.items() if name.startswith("draft.")}


def _anchors(random: np.random.Generator, shape: Shape, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    anchors = torch.zeros(len(shape.lengths), shape.anchors, dtype=torch.int64)
    keep = torch.zeros(anchors.shape, dtype=torch.bool)
    for row, (start, length) in enumerate(zip(starts, shape.lengths, strict=True)):
        places = np.arange(start, length - 1)
        chosen = np.sort(random.permutation(places)[: shape.anchors])
        anchors[row, : chosen.size] = torch.from_numpy(chosen)
        keep[row, : chosen.size] = True
    return anchors, keep
