"""What the drafter is trained for: to fill a block after an anchor as the text goes on.

Same-position labels: slot j of the block at anchor a predicts token a + j; slot 0 is the anchor itself, not trained.

R rows, S tokens, A blocks, K slots of a block, H hidden, N slots with a weight, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.model.blocks import TrainingBatch
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.target import FrozenTarget

SLOTS_PER_CHUNK = 2048
"""Slots whose vocabulary logits exist at once; with more, chunks are computed again in the backward pass."""

Weighting = Literal["decay", "dpace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """How slots are weighted, and what they are compared with."""

    weighting: Weighting
    """`decay`: exp(-(j - 1) / decay) for slot j (DFlash, arXiv 2602.06036, equation 4). `dpace`: by how much each slot
    can still add to the accepted length, as the drafter itself judges (D-PACE, arXiv 2605.18810)."""
    decay: float
    smoothing: float = 0.5
    """D-PACE's alpha: a slot's chance counts as (1 - alpha) * chance + alpha."""
    kl: float = 0.0
    """Share of the divergence from the target's own distribution; the rest is cross entropy to the text."""

    def __post_init__(self) -> None:
        if not (self.decay > 0 and 0 <= self.smoothing <= 1 and 0 <= self.kl <= 1):
            raise ContractBroken(
                f"decay {self.decay}, smoothing {self.smoothing}, kl {self.kl}",
                where="training",
                fix="decay is positive; smoothing and kl lie between 0 and 1",
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossParts:
    """Sums over one micro-batch, to be divided by sums over the step: how ranks share the work then does not matter."""

    loss_sum: Tensor
    """Sum of weight * loss of a slot, with its graph."""
    weight: Tensor
    """Sum of weights, float64: what `loss_sum` is divided by, once it is summed over the step."""
    num_correct_prefix: Tensor
    """Over blocks with a weight: 1 + leading slots whose best token is the label."""
    num_blocks: Tensor


def default_decay(block_size: int) -> float:
    """Meets the published gammas 4, 5 and 7 for blocks of 8, 10 and 16: half the block, from 10 on a third more a slot.

    Between and beyond them it is our reading, on those two lines.
    """
    return block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3


def planned_weights(slots_RAK: Tensor, objective: Objective) -> Tensor:
    """[R, A, K] float32: the weights as far as they are known before the forward; with D-PACE, which slots have one."""
    if objective.weighting == "dpace":
        return slots_RAK.float()
    slot_K = torch.arange(slots_RAK.shape[-1], device=slots_RAK.device)
    return slots_RAK.float() * torch.exp(-(slot_K - 1) / objective.decay)


def micro_batch_loss(
    drafter: nn.Module, target: FrozenTarget, batch: TrainingBatch, weights_RAK: Tensor, objective: Objective
) -> LossParts:
    """Weighted loss of every block of a micro-batch. Without any weight it is 0, attached to every parameter.

    `drafter` is a `Drafter`, bare or in DistributedDataParallel; `weights_RAK` are those of `planned_weights`.
    """
    config = _config_of(drafter)
    features, last_RSH = target_outputs(target, batch, needs_last=objective.kl > 0)
    hidden_RAKH = drafter(features, block_embeddings(target, batch, config), batch.blocks)

    chosen_N = weights_RAK.flatten().nonzero().squeeze(1)
    labels_N = _tokens_at(batch, config.block_size, 0).flatten()[chosen_N]
    teachers = None if last_RSH is None else _gather_hidden(last_RSH, batch, config.block_size, chosen_N)
    losses_N, cross_entropy_N, correct_N = _slot_losses(
        hidden_RAKH.flatten(0, 2)[chosen_N], labels_N, teachers, target, objective.kl
    )
    weights_N = _final_weights(weights_RAK, chosen_N, cross_entropy_N, objective)
    correct = torch.zeros(weights_RAK.numel(), dtype=torch.bool, device=weights_RAK.device)
    correct[chosen_N] = correct_N
    leading = correct.view_as(weights_RAK)[..., 1:].long().cumprod(-1).sum()
    num_blocks = (weights_RAK[..., 1] > 0).sum()
    return LossParts(
        loss_sum=(losses_N * weights_N).sum() + hidden_RAKH.sum() * 0.0,
        weight=weights_N.sum(dtype=torch.float64),
        num_correct_prefix=num_blocks + leading,
        num_blocks=num_blocks,
    )


def target_outputs(target: FrozenTarget, batch: TrainingBatch, *, needs_last: bool) -> tuple[Tensor, Tensor | None]:
    """Features [R, C, F] as far as a block needs them; with `needs_last` of all tokens, and last hidden [R, S, H]."""
    if batch.features is not None:
        return batch.features, None
    if not batch.documents:
        if needs_last:
            return target.features_and_last(batch.input_ids)
        return target.features(batch.input_ids[:, : max(batch.blocks.context_length, 1)]), None
    # Each document by itself: side by side in one row they would attend to one another, and cost their square.
    parts = [batch.input_ids[:, first:end] for first, end in batch.documents]
    if not needs_last:
        return torch.cat([target.features(part) for part in parts], dim=1), None
    both = [target.features_and_last(part) for part in parts]
    return torch.cat([features for features, _ in both], dim=1), torch.cat([last for _, last in both], dim=1)


def block_embeddings(target: FrozenTarget, batch: TrainingBatch, config: DrafterConfig) -> Tensor:
    """[R, A, K, H] of `anchor, mask, mask, …` for every block."""
    anchors_RA = batch.blocks.anchors
    ids_RAK = torch.full((*anchors_RA.shape, config.block_size), config.mask_token_id, device=anchors_RA.device)
    ids_RAK[..., 0] = batch.input_ids.gather(1, anchors_RA)
    return target.embed(ids_RAK)


def _places(batch: TrainingBatch, block_size: int, shift: int, limit: int) -> Tensor:
    """[R, A, K]: the position of each slot's label, `shift` further on, kept within the row."""
    slot_K = torch.arange(block_size, device=batch.input_ids.device)
    return (batch.blocks.anchors[..., None] + slot_K + shift).clamp(min=0, max=limit - 1)


def _tokens_at(batch: TrainingBatch, block_size: int, shift: int) -> Tensor:
    places = _places(batch, block_size, shift, batch.input_ids.shape[1])
    return batch.input_ids.gather(1, places.flatten(1)).view_as(places)


def _gather_hidden(last_RSH: Tensor, batch: TrainingBatch, block_size: int, chosen_N: Tensor) -> Tensor:
    """[N, H]: the target predicts the label at p from its last hidden state at p - 1."""
    places = _places(batch, block_size, -1, last_RSH.shape[1]).flatten(1)
    offsets_R1 = torch.arange(places.shape[0], device=places.device)[:, None] * last_RSH.shape[1]
    return last_RSH.flatten(0, 1)[(places + offsets_R1).flatten()[chosen_N]]


def _slot_losses(
    hidden_NH: Tensor, labels_N: Tensor, teachers_NH: Tensor | None, target: FrozenTarget, kl: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, cross entropy and whether the best token is the label, of each slot; logits a chunk at a time."""
    again = labels_N.numel() > SLOTS_PER_CHUNK and torch.is_grad_enabled()
    found = []
    for first in range(0, max(labels_N.numel(), 1), SLOTS_PER_CHUNK):
        part = slice(first, first + SLOTS_PER_CHUNK)
        inputs = (hidden_NH[part], labels_N[part], None if teachers_NH is None else teachers_NH[part], target, kl)
        found.append(checkpoint(_chunk, *inputs, use_reentrant=False) if again else _chunk(*inputs))
    losses, entropies, correct = (torch.cat(parts) for parts in zip(*found, strict=True))
    return losses, entropies, correct


def _chunk(
    hidden_NH: Tensor, labels_N: Tensor, teachers_NH: Tensor | None, target: FrozenTarget, kl: float
) -> tuple[Tensor, Tensor, Tensor]:
    logits_NV = target.logits(hidden_NH.to(target.dtype)).float()
    entropy_N = functional.cross_entropy(logits_NV, labels_N, reduction="none")
    correct_N = logits_NV.detach().argmax(-1) == labels_N
    if teachers_NH is None:
        return entropy_N, entropy_N.detach(), correct_N
    with torch.no_grad():
        teacher_NV = target.logits(teachers_NH).float().log_softmax(-1)
    divergence_N = functional.kl_div(logits_NV.log_softmax(-1), teacher_NV, log_target=True, reduction="none").sum(-1)
    return (1 - kl) * entropy_N + kl * divergence_N, entropy_N.detach(), correct_N


def _final_weights(weights_RAK: Tensor, chosen_N: Tensor, entropy_N: Tensor, objective: Objective) -> Tensor:
    """[N]. D-PACE: w_j = sum over m >= j of the chance that slots 1 … m are all accepted, each chance smoothed."""
    if objective.weighting == "decay":
        return weights_RAK.flatten()[chosen_N]
    chances = torch.ones(weights_RAK.numel(), dtype=torch.float32, device=weights_RAK.device)
    chances[chosen_N] = (1 - objective.smoothing) * (-entropy_N).exp() + objective.smoothing
    accepted_RAK = chances.view_as(weights_RAK).cumprod(-1) * weights_RAK
    return accepted_RAK.flip(-1).cumsum(-1).flip(-1).flatten()[chosen_N]


def _config_of(drafter: nn.Module) -> DrafterConfig:
    inner = drafter.module if isinstance(drafter, DistributedDataParallel) else drafter
    config = inner.config
    if not isinstance(config, DrafterConfig):
        raise TypeError(f"{type(inner).__name__} is no drafter")
    return config
