"""What the drafter is trained for: to fill a block after an anchor as the text goes on.

Same-position labels: slot j of the block at anchor a predicts token a + j; slot 0 is the anchor itself, not trained.

R rows, S tokens, A blocks, K slots of a block, H hidden, N slots with a weight, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dflash_pipeline.contracts.hashing import mix
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.target import FrozenTarget

SLOTS_PER_CHUNK = 2048
"""Slots whose vocabulary logits exist at once; with more, chunks are computed again in the backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingBatch:
    """One micro-batch, right-padded. Anchors of a row ascend; places without an anchor are not valid."""

    input_ids: Tensor
    """[R, S] int64"""
    loss_mask: Tensor
    """[R, S] bool: supervised tokens"""
    lengths: Tensor
    """[R] int64"""
    anchors: Tensor
    """[R, A] int64"""
    valid: Tensor
    """[R, A] bool"""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossParts:
    """Sums over one micro-batch, to be divided by sums over the step: how ranks share the work then does not matter."""

    loss_sum: Tensor
    """Sum of weight * cross entropy, with its graph."""
    num_correct_prefix: Tensor
    """Over blocks with a weight: 1 + leading slots whose best token is the label."""
    num_blocks: Tensor


def sample_anchors(
    supervised: NDArray[np.bool_], *, max_anchors: int, seed: int, epoch: int, sample_id: int
) -> NDArray[np.int64]:
    """Positions to draft after, ascending: supervised with a supervised successor, at most `max_anchors` of them.

    A function of its arguments alone, so that a resumed run trains the same blocks.
    """
    eligible = np.flatnonzero(supervised[:-1] & supervised[1:])
    if eligible.size > max_anchors:
        order = np.argsort(mix(seed, epoch, sample_id, eligible), kind="stable")
        eligible = np.sort(eligible[order[:max_anchors]])
    return eligible.astype(np.int64)


def default_decay(block_size: int) -> float:
    """Meets the published gammas 4, 5 and 7 for blocks of 8, 10 and 16: half the block, from 10 on a third more a slot.

    Between and beyond them it is our reading, on those two lines.
    """
    return block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3


def slot_weights(
    loss_mask_RS: Tensor, lengths_R: Tensor, anchors_RA: Tensor, valid_RA: Tensor, *, block_size: int, decay: float
) -> Tensor:
    """Weights [R, A, K] in float32: exp(-(j - 1) / decay) for slot j, up to the first unsupervised token or the end."""
    slot_J = torch.arange(1, block_size, device=anchors_RA.device)
    positions_RAJ = anchors_RA[..., None] + slot_J
    inside_RAJ = (positions_RAJ < lengths_R[:, None, None]) & valid_RA[..., None]
    labels_RX = positions_RAJ.clamp(max=loss_mask_RS.shape[1] - 1).flatten(1)
    supervised_RAJ = loss_mask_RS.gather(1, labels_RX).view_as(positions_RAJ) & inside_RAJ
    weights_RAJ = supervised_RAJ.float().cumprod(-1) * torch.exp(-(slot_J - 1) / decay)
    return functional.pad(weights_RAJ, (1, 0))


def micro_batch_loss(drafter: nn.Module, target: FrozenTarget, batch: TrainingBatch, weights_RAK: Tensor) -> LossParts:
    """Weighted cross entropy of every block of a micro-batch. Without any weight it is 0, attached to every parameter.

    `drafter` is a `Drafter`, bare or in DistributedDataParallel.
    """
    config = _config_of(drafter)
    hidden_RAKH = drafter(*drafter_inputs(target, batch, config), batch.anchors, batch.valid)

    weights = weights_RAK.flatten()
    chosen_N = weights.nonzero().squeeze(1)
    num_blocks = (weights_RAK[..., 1] > 0).sum()
    correct = torch.zeros(weights.shape, dtype=torch.bool, device=weights.device)
    loss_sum = hidden_RAKH.sum() * 0.0
    labels = _labels(batch, config.block_size).flatten()
    hidden = hidden_RAKH.flatten(0, 2)
    for chunk in torch.split(chosen_N, SLOTS_PER_CHUNK) if chosen_N.numel() else ():
        again = chosen_N.numel() > SLOTS_PER_CHUNK and torch.is_grad_enabled()
        parts = (hidden[chunk], labels[chunk], weights[chunk], target)
        chunk_loss, chunk_correct = (
            checkpoint(_weighted_loss, *parts, use_reentrant=False) if again else _weighted_loss(*parts)
        )
        loss_sum = loss_sum + chunk_loss
        correct[chunk] = chunk_correct
    leading = correct.view_as(weights_RAK)[..., 1:].long().cumprod(-1).sum()
    return LossParts(loss_sum=loss_sum, num_correct_prefix=num_blocks + leading, num_blocks=num_blocks)


def drafter_inputs(target: FrozenTarget, batch: TrainingBatch, config: DrafterConfig) -> tuple[Tensor, Tensor]:
    """Features [R, C, F] as far as a block needs them, and embeddings [R, A, K, H] of `anchor, mask, mask, …`."""
    context_length = int(batch.anchors.masked_fill(~batch.valid, 0).max())
    features = target.features(batch.input_ids[:, : max(context_length, 1)])
    blocks = torch.full((*batch.anchors.shape, config.block_size), config.mask_token_id, device=batch.anchors.device)
    blocks[..., 0] = batch.input_ids.gather(1, batch.anchors)
    return features, target.embed(blocks)


def _labels(batch: TrainingBatch, block_size: int) -> Tensor:
    positions = batch.anchors[..., None] + torch.arange(block_size, device=batch.anchors.device)
    within = positions.clamp(max=batch.input_ids.shape[1] - 1)
    return batch.input_ids.gather(1, within.flatten(1)).view_as(positions)


def _weighted_loss(
    hidden_NH: Tensor, labels_N: Tensor, weights_N: Tensor, target: FrozenTarget
) -> tuple[Tensor, Tensor]:
    logits_NV = target.logits(hidden_NH.to(target.dtype)).float()
    losses_N = functional.cross_entropy(logits_NV, labels_N, reduction="none")
    return (losses_N * weights_N).sum(), logits_NV.detach().argmax(-1) == labels_N


def _config_of(drafter: nn.Module) -> DrafterConfig:
    inner = drafter.module if isinstance(drafter, DistributedDataParallel) else drafter
    config = inner.config
    if not isinstance(config, DrafterConfig):
        raise TypeError(f"{type(inner).__name__} is no drafter")
    return config
