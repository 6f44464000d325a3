"""One step is the same sum however micro-batches are shared out."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.contracts.manifest import MicroBatch
from dflash_pipeline.model.anchors import supervised_slots
from dflash_pipeline.model.objective import Objective, planned_weights
from dflash_pipeline.training.collate import PreparedBatch
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.step import StepResult, Wishes, run_step
from tests.tiny_models import random_batch, strong_drafter, tiny_config, tiny_target
from tests.training.toy_run import ALONE

CONFIG = tiny_config()
OBJECTIVE = Objective(weighting="decay", decay=4.0)
SHAPES = (((20, 14), (3, 5)), ((33,), (6,)), ((12, 18, 9), (1, 2, 1)), ((40,), (11,)))
"""Lengths and anchors of the four micro-batches of a step: very different weights."""


def prepared(number: int, *, filler: bool = False) -> PreparedBatch:
    lengths, anchors = SHAPES[number]
    batch = random_batch(lengths=lengths, num_anchors=anchors, seed=number)
    weights = planned_weights(supervised_slots(batch.loss_mask, batch.blocks, block_size=8), OBJECTIVE)
    weights = torch.zeros_like(weights) if filler else weights
    source = MicroBatch(
        epoch=2,
        step=7,
        slot=number,
        sample_ids=np.arange(len(lengths)),
        padded_length=max(lengths),
        num_tokens=1,
        supervised_tokens=1,
        cost=1.0,
        filler=filler,
    )
    weight = float(weights.sum(dtype=torch.float64))
    num_anchors = 0 if filler else sum(anchors)
    return PreparedBatch(source=source, batch=batch, weights=weights, weight=weight, num_anchors=num_anchors)


STEP = tuple(prepared(number) for number in range(4))


class PretendRanks(Ranks):
    """One of several ranks. Sums of what is known beforehand are over all of them; its own losses are remembered."""

    def sum(self, values: Sequence[float]) -> list[float]:
        return [sum(b.weight for b in STEP), sum(b.num_anchors for b in STEP), *values[2:]]

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        ASKED.append(tensor.tolist())
        return tensor


ASKED: list[list[float]] = []


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def drafter():
    return strong_drafter(CONFIG)


def run(drafter, target, batches, *, ranks: Ranks = ALONE, stop=False) -> tuple[StepResult, dict[str, torch.Tensor]]:
    """The step's result and its gradients, unclipped and not applied."""
    model = copy.deepcopy(drafter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    result = run_step(
        model,
        target,
        optimizer,
        batches,
        objective=OBJECTIVE,
        ranks=ranks,
        max_gradient_norm=math.inf,
        wishes=Wishes(stop=stop),
    )
    return result, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_step_is_the_same_on_one_two_and_four_ranks(drafter, target, world_size):
    """Averaged over ranks, as DistributedDataParallel does, gradients are those of one rank that runs everything."""
    whole, expected = run(drafter, target, STEP)
    averaged = {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    loss_sum = 0.0
    for rank in range(world_size):
        ASKED.clear()
        ranks = PretendRanks(rank=rank, world_size=world_size, device=torch.device("cpu"))
        _, gradients = run(drafter, target, STEP[rank::world_size], ranks=ranks)
        loss_sum += ASKED[0][0]
        for name, gradient in gradients.items():
            averaged[name] += gradient / world_size
    assert loss_sum / sum(b.weight for b in STEP) == pytest.approx(whole.loss, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(averaged[name], gradient, rtol=1e-4, atol=1e-6)
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-3


def test_the_loss_is_weighted_by_the_whole_step_and_not_the_mean_of_its_parts(drafter, target):
    parts = [run(drafter, target, (part,))[0].loss for part in STEP]
    weights = [part.weight for part in STEP]
    whole = run(drafter, target, STEP)[0]
    assert whole.loss == pytest.approx(np.average(parts, weights=weights), rel=1e-6)
    assert abs(whole.loss - np.mean(parts)) > 1e-3
    assert whole.num_anchors == sum(sum(anchors) for _, anchors in SHAPES)


def test_a_filler_adds_nothing_to_the_last_bit(drafter, target):
    without, expected = run(drafter, target, STEP[:3])
    with_filler, gradients = run(drafter, target, (*STEP[:3], prepared(3, filler=True)))
    assert with_filler == without
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_a_step_of_fillers_alone_is_refused(drafter, target):
    with pytest.raises(Failed, match="epoch 2 step 7: no block"):
        run(drafter, target, (prepared(0, filler=True),))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_weights_and_moments(drafter, target, poison):
    model = copy.deepcopy(drafter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    bad = replace(STEP[1], weights=STEP[1].weights * poison)
    result = run_step(
        model,
        target,
        optimizer,
        (STEP[0], bad),
        objective=OBJECTIVE,
        ranks=ALONE,
        max_gradient_norm=1.0,
        wishes=Wishes(),
    )
    assert not math.isfinite(result.loss)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), drafter.parameters(), strict=True))
    assert not optimizer.state
    good = run_step(
        model, target, optimizer, STEP, objective=OBJECTIVE, ranks=ALONE, max_gradient_norm=1.0, wishes=Wishes()
    )
    assert math.isfinite(good.loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), drafter.parameters(), strict=True))


def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_told(drafter, target):
    model = copy.deepcopy(drafter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    result = run_step(
        model, target, optimizer, STEP, objective=OBJECTIVE, ranks=ALONE, max_gradient_norm=0.01, wishes=Wishes()
    )
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert result.gradient_norm > 0.02


def test_gradients_of_an_earlier_step_are_forgotten(drafter, target):
    model = copy.deepcopy(drafter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(2):
        run_step(
            model,
            target,
            optimizer,
            STEP,
            objective=OBJECTIVE,
            ranks=ALONE,
            max_gradient_norm=math.inf,
            wishes=Wishes(),
        )
    _, once = run(drafter, target, STEP)
    assert all(torch.equal(p.grad, once[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("stop", [False, True])
def test_a_wish_to_stop_is_passed_on(drafter, target, stop):
    assert run(drafter, target, STEP, stop=stop)[0].wishes.stop is stop


def test_the_target_is_not_trained(drafter, target):
    run(drafter, target, STEP)
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in target._model.parameters())
