"""One optimiser step: the same sum over the same global batch, however ranks and micro-batches share it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.model.objective import TrainingBatch, micro_batch_loss
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.training.collate import PreparedBatch
from dflash_pipeline.training.distributed import Ranks, without_sync


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """Sums over all ranks, equal on every rank."""

    loss: float
    expected_acceptance: float
    gradient_norm: float
    num_anchors: int
    stop_asked: bool
    """Some rank was asked to stop: all ranks stop after this step."""


def run_step(
    model: nn.Module,
    target: FrozenTarget,
    optimizer: torch.optim.Optimizer,
    batches: tuple[PreparedBatch, ...],
    *,
    ranks: Ranks,
    max_gradient_norm: float,
    stop_asked: bool,
) -> StepResult:
    """Forward, backward, clip and update.

    The loss is the sum of weighted cross entropies over the sum of weights of the whole step. Since the weights are
    known before the forward, that denominator is reduced first and every micro-batch's gradient is final as it is made.
    A non-finite loss or gradient leaves the weights as they are; all ranks see the same numbers and decide alike.
    """
    weight, anchors, stops = ranks.sum(
        [sum(b.weight for b in batches), sum(b.num_anchors for b in batches), float(stop_asked)]
    )
    if weight <= 0:
        source = batches[0].source
        raise Failed(
            "no block of this step has a supervised token",
            where=f"epoch {source.epoch} step {source.step}",
            fix="rebuild the snapshot: tokenisation keeps only samples with two consecutive supervised tokens",
        )
    optimizer.zero_grad(set_to_none=True)
    loss_sum, correct, blocks = _accumulate(model, target, batches, weight=weight, ranks=ranks)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm)
    loss_sum, correct, blocks = ranks.sum([loss_sum, correct, blocks])
    gradient_norm = float(norm)
    if math.isfinite(loss_sum) and math.isfinite(gradient_norm):
        optimizer.step()
    return StepResult(
        loss=loss_sum / weight,
        expected_acceptance=correct / max(blocks, 1.0),
        gradient_norm=gradient_norm,
        num_anchors=int(anchors),
        stop_asked=stops > 0,
    )


def _accumulate(
    model: nn.Module, target: FrozenTarget, batches: tuple[PreparedBatch, ...], *, weight: float, ranks: Ranks
) -> tuple[float, float, float]:
    """Backward over this rank's micro-batches; its sums of loss, correct prefixes and blocks."""
    # DDP averages over ranks; the loss is a sum over them.
    scale = ranks.world_size / weight
    sums = torch.zeros(3, dtype=torch.float64, device=ranks.device)
    for index, prepared in enumerate(batches):
        with without_sync(model, skip=index < len(batches) - 1):
            parts = micro_batch_loss(
                model, target, _on_device(prepared.batch, ranks.device), prepared.weights.to(ranks.device)
            )
            (parts.loss_sum * scale).backward()
        sums += torch.stack(
            (parts.loss_sum.detach().double(), parts.num_correct_prefix.double(), parts.num_blocks.double())
        )
    loss_sum, correct, blocks = sums.tolist()
    return loss_sum, correct, blocks


def _on_device(batch: TrainingBatch, device: torch.device) -> TrainingBatch:
    if device.type == "cpu":
        return batch
    return TrainingBatch(
        input_ids=batch.input_ids.to(device, non_blocking=True),
        loss_mask=batch.loss_mask.to(device, non_blocking=True),
        lengths=batch.lengths.to(device, non_blocking=True),
        anchors=batch.anchors.to(device, non_blocking=True),
        valid=batch.valid.to(device, non_blocking=True),
    )
