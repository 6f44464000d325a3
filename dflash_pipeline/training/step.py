"""One optimiser step: the same sum over the same global batch, however ranks and micro-batches share it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.model.objective import Objective, drafter_loss, target_outputs
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.training.collate import PreparedBatch
from dflash_pipeline.training.distributed import Ranks, without_sync
from dflash_pipeline.training.sharding import whole
from dflash_pipeline.training.step_clock import UNTIMED, StepClock


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What a rank asks of all ranks; what one asks, all do after the step."""

    stop: bool = False
    save: bool = False
    measure: bool = False
    """Weights are handed out after the step, to be measured."""
    enough: bool = False
    """The run ends after the step, in good order: a measurement says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """Sums over all ranks, equal on every rank."""

    loss: float
    expected_acceptance: float
    gradient_norm: float
    num_anchors: int
    applied: bool
    """False: loss or gradient was not finite, and the weights are as they were."""
    wishes: Wishes
    """Of any rank."""


def run_step(
    model: nn.Module,
    target: FrozenTarget,
    optimizer: torch.optim.Optimizer,
    batches: tuple[PreparedBatch, ...],
    *,
    objective: Objective,
    ranks: Ranks,
    max_gradient_norm: float,
    wishes: Wishes,
    clock: StepClock = UNTIMED,
) -> StepResult:
    """Forward, backward, clip and update.

    The loss is the sum of weighted slot losses over the sum of weights of the whole step. Weights that are known before
    the forward are summed first, so that every micro-batch's gradient is final as it is made; those that depend on the
    drafter (D-PACE) correct the gradient once, at the end. A loss or gradient that is not finite leaves the weights as
    they are; all ranks see the same numbers and decide alike. `clock` hears where the time goes.

    The host waits for the device once, at the end; with D-PACE a second time, for the weights.
    """
    clock.start()
    planned, anchors, *asked = ranks.sum(
        [
            sum(b.weight for b in batches),
            sum(b.num_anchors for b in batches),
            *map(float, (wishes.stop, wishes.save, wishes.measure, wishes.enough)),
        ]
    )
    stop, save, measure, enough = (count > 0 for count in asked)
    clock.lap("communication")
    if planned <= 0:
        source = batches[0].source
        raise Failed(
            "no block of this step has a supervised token",
            where=f"epoch {source.epoch} step {source.step}",
            fix="rebuild the snapshot: tokenisation keeps only samples with two consecutive supervised tokens",
        )
    optimizer.zero_grad(set_to_none=True)
    sums = _accumulate(model, target, batches, objective=objective, weight=planned, ranks=ranks, clock=clock)
    totals = ranks.total(sums)
    clock.lap("communication")
    weight = planned if objective.weighting == "decay" else float(totals[1])
    if weight != planned:
        _scale_gradients(model, planned / weight)
    gradient_norm = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm))
    results = torch.stack((totals[0], totals[2], gradient_norm.double()))
    clock.lap("optimizer")
    loss_sum, correct, norm = results.tolist()
    clock.waited()
    applied = math.isfinite(loss_sum) and math.isfinite(norm)
    if applied:
        optimizer.step()
        clock.lap("optimizer")
    return StepResult(
        loss=loss_sum / weight,
        expected_acceptance=correct / max(anchors, 1.0),
        gradient_norm=norm,
        num_anchors=int(anchors),
        applied=applied,
        wishes=Wishes(stop=stop, save=save, measure=measure, enough=enough),
    )


def _accumulate(
    model: nn.Module,
    target: FrozenTarget,
    batches: tuple[PreparedBatch, ...],
    *,
    objective: Objective,
    weight: float,
    ranks: Ranks,
    clock: StepClock,
) -> Tensor:
    """Backward over this rank's micro-batches; sums over them of loss, weight and correct slots in front [3]."""
    # Gradients are averaged over ranks; the loss is a sum over them.
    scale = ranks.world_size / weight
    sums = torch.zeros(3, dtype=torch.float64, device=ranks.device)
    for index, prepared in enumerate(batches):
        is_last = index == len(batches) - 1
        with without_sync(model, skip=not is_last), _precision(ranks.device):
            batch = prepared.batch.to(ranks.device)
            outputs = target_outputs(target, batch, needs_last=objective.kl > 0)
            clock.lap("target")
            parts = drafter_loss(model, target, batch, outputs, prepared.weights, objective)
            clock.lap("drafter")
            (parts.loss_sum * scale).backward()
        if is_last and isinstance(model, DistributedDataParallel):
            clock.lap_backward()
        else:
            clock.lap("backward")
        sums += torch.stack((parts.loss_sum.detach().double(), parts.weight, parts.num_correct_prefix.double()))
    return sums


def _precision(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 products over float32 weights on CUDA; a CPU computes in float32."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def _scale_gradients(model: nn.Module, factor: float) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch._foreach_mul_(gradients, factor)
