"""What a rank holds in memory at once, by what it is for.

Weights, gradients and moments are exact. What a step computes is an upper bound by the sizes of its tensors: on the CPU
the peak of a whole step lies between 0.7 of it and all of it (tests/stages/test_dry_run_memory.py). What an allocator,
a kernel or a communication library takes beside is not in it.

C positions of the packed context, Q slots of all blocks, T both, H hidden, I inner width of an MLP, N heads, G
key-value heads, D head dimension, W ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.slot_losses import LOGITS_PER_CHUNK
from dflash_pipeline.model.zlab_json import zlab_tensor_shapes
from dflash_pipeline.stages.dry_run.shapes import BatchShapes, Floats
from dflash_pipeline.stages.dry_run.target import TargetSize

_GATHERED = 2
"""Layers that are whole at once where they are held in parts: the one that runs, and the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One part of a sum, and how it comes about."""

    what: str
    num_bytes: int
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """How numbers are held: what of a recipe changes memory and not what is computed."""

    num_ranks: int
    drafter_in_parts: bool
    target_in_parts: bool
    device: Literal["cpu", "cuda"]
    number: int
    """Bytes of a number of the target, and of what linear layers of the drafter read and give: 2 in bfloat16."""
    recomputed: bool
    """Of a layer of the drafter only its input is kept; it runs again in the backward pass."""
    kl: bool


Moment = Literal["the target's forward", "the loss", "the drafter's backward"]
_Sizes = dict[str, tuple[Floats, str]]
"""What is held: bytes of every micro-batch, and how they come about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Bytes of one rank in one micro-batch, at the moment when it holds most."""

    items: tuple[Item, ...]
    moment: Moment

    @property
    def num_bytes(self) -> int:
        return sum(item.num_bytes for item in self.items)


def num_drafter_parameters(drafter: DrafterConfig) -> int:
    return sum(math.prod(shape) for shape in zlab_tensor_shapes(drafter).values())


def rank_memory(
    shapes: BatchShapes, at: int, *, target: TargetSize, drafter: DrafterConfig, holding: Holding
) -> RankMemory:
    """What a rank holds in micro-batch `at`."""
    moments = _at_each_moment(shapes, target, drafter, holding)
    moment = max(moments, key=lambda name: sum(float(size[at]) for size, _ in moments[name].values()))
    running = [
        Item(what=what, num_bytes=round(float(size[at])), how=how) for what, (size, how) in moments[moment].items()
    ]
    return RankMemory(items=(*held_items(target, drafter, holding), *running), moment=moment)


def largest(shapes: BatchShapes, *, target: TargetSize, drafter: DrafterConfig, holding: Holding) -> int:
    """The micro-batch that takes most, by its place in the manifest's order."""
    moments = _at_each_moment(shapes, target, drafter, holding).values()
    sums = [np.sum([size for size, _ in sizes.values()], axis=0) for sizes in moments]
    return int(np.argmax(np.max(sums, axis=0)))


def held_items(target: TargetSize, drafter: DrafterConfig, holding: Holding) -> tuple[Item, ...]:
    """What is held from the first step to the last, whatever the micro-batch.

    The target once a rank, and in parts (`fsdp`) its layers over W. Of the drafter weights, gradients and AdamW's two
    moments (Loshchilov and Hutter, arXiv 1711.05101) in float32, and in parts all of them over W.
    """
    number, ranks = holding.number, holding.num_ranks
    in_layers = target.num_layer_parameters
    own = math.ceil(in_layers / ranks) if holding.target_in_parts else in_layers
    of_drafter = num_drafter_parameters(drafter)
    part = math.ceil(of_drafter / ranks) if holding.drafter_in_parts else of_drafter
    shared = f", {ranks} ranks share them" if holding.drafter_in_parts else ""
    items = [
        Item(
            what="target",
            num_bytes=number * (target.num_parameters - in_layers + own),
            how=f"{target.num_parameters:,} weights of {number} bytes"
            + (f", {ranks} ranks share its layers" if holding.target_in_parts else ""),
        ),
        Item(what="drafter weights", num_bytes=4 * part, how=f"{of_drafter:,} of 4 bytes{shared}"),
        Item(what="gradients", num_bytes=4 * part, how="one a weight, 4 bytes"),
        Item(what="moments", num_bytes=8 * part, how="AdamW: two a weight, 4 bytes each"),
    ]
    if number < 4:
        how = f"{of_drafter:,} of {number} bytes, for products"
        items.append(Item(what="weights rounded", num_bytes=number * of_drafter, how=how))
    if gathered := _gathered(target, drafter, holding):
        items.append(Item(what="gathered layers", num_bytes=gathered, how=f"{_GATHERED} whole layers while they run"))
    return tuple(items)


def _gathered(target: TargetSize, drafter: DrafterConfig, holding: Holding) -> int:
    """Whole layers beside the parts; of the drafter with their gradients. Target and drafter run in turn."""
    of_target = holding.number * target.num_layer_parameters // target.num_layers if holding.target_in_parts else 0
    of_drafter = 2 * 4 * num_drafter_parameters(drafter) // drafter.num_layers if holding.drafter_in_parts else 0
    return _GATHERED * max(of_target, of_drafter)


def _at_each_moment(
    shapes: BatchShapes, target: TargetSize, drafter: DrafterConfig, holding: Holding
) -> dict[Moment, _Sizes]:
    features = {"features": _features(shapes, target, drafter, holding)}
    kept = kept_bytes(shapes, drafter, holding)
    # A layer that is run again is whole once the backward has come to it.
    again = _layer_bytes(shapes, drafter, holding) if holding.recomputed else 0.0
    how = "what goes into each layer, and one layer" if holding.recomputed else "kept for the backward"
    loss = {"activations": (kept, "kept for the backward"), **_loss(shapes, target, drafter, holding)}
    backward = {"activations": (kept + again, how), **_backward(shapes, drafter, holding)}
    return {
        "the target's forward": _target_forward(shapes, target, drafter, holding),
        "the loss": features | loss,
        "the drafter's backward": features | backward,
    }


def _target_forward(shapes: BatchShapes, target: TargetSize, drafter: DrafterConfig, holding: Holding) -> _Sizes:
    """Without gradients: the taps and their copy side by side, and the tensors of one layer.

    Of a layer an MLP has most: three tensors of its inner width, beside four of the hidden width.
    """
    taps = len(drafter.tap_layer_ids)
    features = holding.number * shapes.padded_tokens * taps * drafter.hidden_size
    layer = holding.number * shapes.padded_tokens * (3 * target.intermediate_size + 4 * target.hidden_size)
    return {
        "features": (2 * features, f"{taps} taps of every token, and once more side by side"),
        "target layer": (layer, "one at a time"),
    }


def _features(shapes: BatchShapes, target: TargetSize, drafter: DrafterConfig, holding: Holding) -> tuple[Floats, str]:
    """In rows as the target gave them, and packed without what no block sees; for a divergence its last layer's too."""
    taps = len(drafter.tap_layer_ids)
    numbers = (shapes.padded_tokens + shapes.context) * taps * drafter.hidden_size
    if holding.kl:
        numbers = numbers + shapes.padded_tokens * target.hidden_size
    return holding.number * numbers, f"{taps} taps of every token, in rows and packed"


def _loss(shapes: BatchShapes, target: TargetSize, drafter: DrafterConfig, holding: Holding) -> _Sizes:
    """Of a chunk the logits and two more of their size, or seven with a divergence (`model/slot_losses.py`).

    Of every weighted slot the hidden state, its gradient, and for a divergence the target's hidden state.
    """
    weighted = shapes.blocks * (drafter.block_size - 1)
    most = max(LOGITS_PER_CHUNK[holding.device], target.vocab_size)
    logits = np.minimum(weighted * target.vocab_size, most)
    return {
        "weighted slots": (4 * (3 if holding.kl else 2) * weighted * drafter.hidden_size, "hidden states, slopes"),
        "logits": (4 * (8 if holding.kl else 3) * logits, f"at most {most:,} at a time, in float32"),
    }


def _backward(shapes: BatchShapes, drafter: DrafterConfig, holding: Holding) -> _Sizes:
    """Gradients on their way through one layer: three tensors of the MLP's inner width, three of the hidden width."""
    slots, weighted = shapes.blocks * drafter.block_size, shapes.blocks * (drafter.block_size - 1)
    inner = holding.number * 3 * slots * drafter.intermediate_size
    return {"on the way": (inner + 4 * (3 * slots + weighted) * drafter.hidden_size, "gradients of one layer")}


def kept_bytes(shapes: BatchShapes, drafter: DrafterConfig, holding: Holding) -> Floats:
    """What the drafter's forward keeps for its backward, without the features (`model/drafter.py`).

    Every layer, or where layers are recomputed what goes into each, Q H. Once for all of them: on the CPU masks;
    rotations, 2 T D; into the context's norm C H, and into the last one Q H, in float32.
    """
    slots = shapes.blocks * drafter.block_size
    all_keys = shapes.context + slots
    layer = 4 * slots * drafter.hidden_size if holding.recomputed else _layer_bytes(shapes, drafter, holding)
    masks = len(set(drafter.layer_types)) * shapes.cells if holding.device == "cpu" else 0.0
    return drafter.num_layers * layer + 4 * (masks + all_keys * (2 * drafter.head_dim + drafter.hidden_size))


def _layer_bytes(shapes: BatchShapes, drafter: DrafterConfig, holding: Holding) -> Floats:
    """What one layer keeps (`model/drafter.py`, `model/attention.py`).

    Of every slot, for two norms 4 H (what goes in and what comes out), for the queries 3 N D + N (projection, rotated,
    mixed; sums) and for the MLP 4 I; of every key H for its projections and 3 G D (key projection, rotated, values).
    What goes into norms is in float32.
    """
    hidden, number = drafter.hidden_size, holding.number
    queries, keys = drafter.num_heads * drafter.head_dim, drafter.num_kv_heads * drafter.head_dim
    slots = shapes.blocks * drafter.block_size
    of_slot = 4 * (2 * hidden + queries + drafter.num_heads)
    of_slot += number * (2 * hidden + 2 * queries + 4 * drafter.intermediate_size)
    return slots * of_slot + (shapes.context + slots) * (4 * keys + number * (hidden + 2 * keys))
