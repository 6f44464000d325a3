"""The memory of a dry run against what a small drafter really takes: exact where it says so, else within a factor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.model.anchors import sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import TrainingBatch, in_rows, place_blocks
from dflash_pipeline.model.config import FULL, SLIDING, DrafterConfig, Execution, drafter_config
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import Objective, micro_batch_loss, planned_weights
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.stages.dry_run.memory import (
    Holding,
    held_items,
    largest,
    num_drafter_parameters,
    rank_memory,
)
from dflash_pipeline.stages.dry_run.memory import kept_bytes as said_to_be_kept
from dflash_pipeline.stages.dry_run.shapes import BatchShapes, batch_shapes
from dflash_pipeline.stages.dry_run.target import target_size
from tests.conftest import ROOT
from tests.stages.measured_memory import Peak, kept_bytes

TARGET = ROOT / "examples" / "target"
SIZE = target_size(TARGET)
SHARE, MOST = 0.25, 40
ALONE = Holding(
    num_ranks=1, drafter_in_parts=False, target_in_parts=False, device="cpu", number=4, recomputed=False, kl=False
)
LENGTHS = {
    "one row": [400],
    "equal rows": [150] * 6,
    "unequal rows": [390, 64, 230, 120, 24],
    "short rows": [20] * 30,
}


def drafter(*, num_layers: int = 3, block_size: int = 8, layer_types: tuple[str, ...] | None = None) -> DrafterConfig:
    return drafter_config(
        SIZE.config,
        num_layers=num_layers,
        block_size=block_size,
        tap_layer_ids=(0, 1, 2),
        mask_token_id=3,
        intermediate_size=None,
        layer_types=layer_types,
        sliding_window=None if layer_types is None else 48,
    )


def shapes_of(lengths: list[int], config: DrafterConfig) -> BatchShapes:
    """Of one micro-batch that holds samples of these lengths, every token supervised."""
    column = np.array(lengths, dtype=np.int64)
    spec = BatchingSpec(strategy="sorted", token_budget=10**6, slots_per_step=1, boundaries=(max(lengths),), seed=0)
    samples = SampleLengths(snapshot="toy", num_tokens=column, num_supervised=column)
    manifest = build_epoch_manifest(samples, spec, epoch=0)
    assert manifest.padded_length.size == 1
    return batch_shapes(manifest, samples, block_size=config.block_size, anchor_share=SHARE, anchors_per_sample=MOST)


def batch_of(lengths: list[int], config: DrafterConfig) -> TrainingBatch:
    width, documents = max(lengths), in_rows(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    anchors = [
        sample_anchors(row.numpy(), share=SHARE, most=MOST, seed=0, epoch=0, sample_id=number)
        for number, row in enumerate(mask)
    ]
    ids = torch.randint(10, SIZE.vocab_size, (len(lengths), width), generator=torch.Generator().manual_seed(0))
    return TrainingBatch(
        input_ids=ids, loss_mask=mask, documents=documents, blocks=place_blocks(anchors, documents, width=width)
    )


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("num_layers", "block_size"), [(1, 8), (3, 8), (3, 16), (2, 4)])
def test_what_is_kept_for_the_backward_pass(lengths: list[int], num_layers: int, block_size: int) -> None:
    """Never less than is kept but for 2 %, and never more than a quarter above it."""
    kept, estimate = kept_and_said(drafter(num_layers=num_layers, block_size=block_size), lengths)
    assert 0.98 * kept <= estimate <= 1.25 * kept


def test_sliding_layers_take_no_more_than_is_said() -> None:
    kept, estimate = kept_and_said(drafter(layer_types=(SLIDING, SLIDING, FULL)), LENGTHS["unequal rows"])
    assert kept <= estimate


def kept_and_said(config: DrafterConfig, lengths: list[int]) -> tuple[int, float]:
    """Bytes that a forward pass keeps for the backward, and those that are said: packed features are among both."""
    net, batch = Drafter.initialised(config, 0), batch_of(lengths, config)
    features = torch.randn(*batch.input_ids.shape, len(config.tap_layer_ids) * config.hidden_size)
    embeddings = torch.randn(len(batch.blocks.anchors), config.block_size, config.hidden_size)
    kept = kept_bytes(lambda: net(features, embeddings, batch.blocks), apart_from=[*net.parameters(), features])
    shapes = shapes_of(lengths, config)
    packed = 4 * shapes.context * features.shape[-1]
    return kept, float((said_to_be_kept(shapes, config, ALONE) + packed)[0])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("kl", "recomputed"), [(0.0, False), (0.5, False), (0.0, True)])
def test_the_peak_of_a_whole_step(lengths: list[int], kl: float, recomputed: bool) -> None:
    """Of forward, backward and update together: never more than is said, and at least seven tenths of it."""
    config = drafter()
    target = FrozenTarget.load(TARGET, tap_layer_ids=config.tap_layer_ids)
    net = Drafter.initialised(config, 0, Execution(recompute=recomputed))
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    batch, objective = batch_of(lengths, config), Objective(weighting="decay", decay=4.0, kl=kl)
    weights = planned_weights(supervised_slots(batch.loss_mask, batch.blocks, block_size=config.block_size), objective)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)  # As with DDP, whose gradients lie in buckets that stay.
        micro_batch_loss(net, target, batch, weights, objective).loss_sum.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    step()  # The first makes gradients and moments, which are exact.
    with Peak() as peak:
        step()

    memory = rank_memory(
        shapes_of(lengths, config),
        0,
        target=SIZE,
        drafter=config,
        holding=replace(ALONE, kl=kl > 0, recomputed=recomputed),
    )
    lasting = {"target", "drafter weights", "gradients", "moments"}
    estimate = sum(item.num_bytes for item in memory.items if item.what not in lasting)
    assert 0.7 * estimate <= peak.most <= estimate


def test_weights_gradients_and_moments_are_exact() -> None:
    config = drafter()
    net = Drafter.initialised(config, 0)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    net(
        torch.randn(1, 30, 3 * config.hidden_size),
        torch.randn(1, 8, config.hidden_size),
        place_blocks([np.array([9])], in_rows([30]), width=30),
    ).sum().backward()
    optimizer.step()

    def size(tensors: list[torch.Tensor]) -> int:
        return sum(tensor.nbytes for tensor in tensors)

    states = [optimizer.state[parameter] for parameter in net.parameters()]
    items = {item.what: item.num_bytes for item in held_items(SIZE, config, ALONE)}
    assert items == {
        "target": size(list(FrozenTarget.load(TARGET, tap_layer_ids=(0,))._model.parameters())),
        "drafter weights": size(list(net.parameters())),
        "gradients": size([parameter.grad for parameter in net.parameters() if parameter.grad is not None]),
        "moments": size([state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]),
    }


def test_parts_are_shared_by_the_ranks() -> None:
    config = drafter()
    whole = {item.what: item.num_bytes for item in held_items(SIZE, config, ALONE)}
    holding = replace(ALONE, num_ranks=4, drafter_in_parts=True, target_in_parts=True)
    parts = {item.what: item.num_bytes for item in held_items(SIZE, config, holding)}
    outside = 4 * (SIZE.num_parameters - SIZE.num_layer_parameters)
    assert outside > 0
    assert parts["target"] == outside + (whole["target"] - outside) // 4
    assert [parts[what] / whole[what] for what in ("drafter weights", "gradients", "moments")] == [0.25] * 3
    assert parts["gathered layers"] > 0
    only_target = held_items(SIZE, config, replace(holding, drafter_in_parts=False))
    assert {item.what: item.num_bytes for item in only_target}["moments"] == whole["moments"]


def test_the_target_is_counted_as_it_is_loaded_tied_or_not() -> None:
    model = FrozenTarget.load(TARGET, tap_layer_ids=(0,))._model
    assert SIZE.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    known = target_size(ROOT / "examples" / "qwen3-8b")
    assert known.num_parameters == 8_190_735_360
    assert known.num_layer_parameters == known.num_parameters - 2 * 151_936 * 4096 - 4096


def test_the_published_drafter_has_its_size() -> None:
    """z-lab's Qwen3-8B-DFlash-b16: 58 tensors, 1.05 billion weights."""
    config = drafter_config(
        target_size(ROOT / "examples" / "qwen3-8b").config,
        num_layers=5,
        block_size=16,
        tap_layer_ids=None,
        mask_token_id=151_669,
        intermediate_size=None,
    )
    assert config.tap_layer_ids == (1, 9, 17, 25, 33)
    assert num_drafter_parameters(config) == 1_048_626_432


def test_the_largest_micro_batch_is_the_one_that_takes_most() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 400, 600)
    samples = SampleLengths(snapshot="toy", num_tokens=lengths, num_supervised=lengths // 2)
    spec = BatchingSpec(strategy="window", token_budget=1200, slots_per_step=2, boundaries=(400,), seed=0)
    manifest, config = build_epoch_manifest(samples, spec, epoch=0), drafter()
    shapes = batch_shapes(manifest, samples, block_size=8, anchor_share=SHARE, anchors_per_sample=MOST)
    sizes = {"target": SIZE, "drafter": config, "holding": ALONE}
    each = [rank_memory(shapes, at, **sizes).num_bytes for at in range(manifest.padded_length.size)]
    assert each[largest(shapes, **sizes)] == max(each)
    assert len(set(each)) > 10


def test_a_sample_without_two_supervised_tokens_gives_no_block() -> None:
    lengths = np.array([50, 50], dtype=np.int64)
    samples = SampleLengths(snapshot="toy", num_tokens=lengths, num_supervised=np.array([1, 40]))
    spec = BatchingSpec(strategy="sorted", token_budget=1000, slots_per_step=1, boundaries=(50,), seed=0)
    manifest = build_epoch_manifest(samples, spec, epoch=0)
    shapes = batch_shapes(manifest, samples, block_size=8, anchor_share=SHARE, anchors_per_sample=MOST)
    assert (shapes.blocks.tolist(), shapes.context.tolist(), shapes.padded_tokens.tolist()) == ([10.0], [50.0], [100.0])
