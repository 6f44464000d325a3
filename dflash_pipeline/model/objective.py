"""What the drafter is trained for: to fill a block after an anchor as the text goes on.

Same-position labels: slot j of the block at anchor a predicts token a + j; slot 0 is the anchor itself, not trained.

R rows, S tokens of a row, A blocks, K slots of a block, H hidden, N slots with a weight, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.model.blocks import TrainingBatch
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.slot_losses import slot_losses
from dflash_pipeline.model.target import FrozenTarget

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
    """Over blocks with a weight: 1 + leading slots whose best token is the label. Slots without a weight are passed
    over: they count for nothing and end nothing."""
    num_blocks: int


def default_decay(block_size: int) -> float:
    """Meets the published gammas 4, 5 and 7 for blocks of 8, 10 and 16: half the block, from 10 on a third more a slot.

    Between and beyond them it is our reading, on those two lines.
    """
    return block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3


def planned_weights(slots_AK: Tensor, objective: Objective) -> Tensor:
    """[A, K] float32: the weights as far as they are known before the forward; with D-PACE, which slots have one."""
    if objective.weighting == "dpace":
        return slots_AK.float()
    slot_K = torch.arange(slots_AK.shape[-1], device=slots_AK.device)
    return slots_AK.float() * torch.exp(-(slot_K - 1) / objective.decay)


def micro_batch_loss(
    drafter: nn.Module, target: FrozenTarget, batch: TrainingBatch, weights_AK: Tensor, objective: Objective
) -> LossParts:
    """Weighted loss of every block of a micro-batch. Without any weight it is 0, attached to every parameter.

    `drafter` is a `Drafter`, bare or in DistributedDataParallel; `weights_AK` are those of `planned_weights`, on the
    host.
    """
    outputs = target_outputs(target, batch, needs_last=objective.kl > 0)
    return drafter_loss(drafter, target, batch, outputs, weights_AK, objective)


def drafter_loss(
    drafter: nn.Module,
    target: FrozenTarget,
    batch: TrainingBatch,
    outputs: tuple[Tensor, Tensor | None],
    weights_AK: Tensor,
    objective: Objective,
) -> LossParts:
    """`micro_batch_loss` of what `target_outputs` gave."""
    config, device = _config_of(drafter), batch.input_ids.device
    features, last_RSH = outputs
    hidden_AKH = drafter(features, block_embeddings(target, batch, config), batch.blocks)

    # Counted on the host, which knows the weights: a device would have to be waited for.
    chosen = weights_AK.flatten().nonzero().squeeze(1)
    chosen_N = sent(chosen, device)
    places_N = _places(batch, config.block_size).flatten()[chosen_N]
    labels_N = batch.input_ids.flatten()[places_N]
    # The target predicts the label at p from its last hidden state at p - 1.
    teachers_NH = None if last_RSH is None else last_RSH.flatten(0, 1)[places_N - 1]
    slots = slot_losses(hidden_AKH.flatten(0, 1)[chosen_N], labels_N, teachers_NH, target, objective.kl)
    if objective.weighting == "decay":
        weights_N = sent(weights_AK.flatten()[chosen], device)
    else:
        weights_N = _dpace_weights(sent(weights_AK, device), chosen_N, slots.cross_entropy, objective)
    leading = leading_correct(slots.correct, chosen_N, weights_AK.shape)
    num_blocks = int((weights_AK[..., 1:] > 0).any(-1).sum())
    return LossParts(
        loss_sum=(slots.losses * weights_N).sum() + hidden_AKH.sum() * 0.0,
        weight=weights_N.sum(dtype=torch.float64),
        num_correct_prefix=num_blocks + leading,
        num_blocks=num_blocks,
    )


def leading_correct(correct_N: Tensor, chosen_N: Tensor, shape: torch.Size) -> Tensor:
    """Slots of blocks [A, K] that are right with all slots with a weight before them; `chosen_N` have one."""
    right = torch.zeros(shape.numel(), dtype=torch.long, device=correct_N.device)
    right[chosen_N] = correct_N.long()
    standing = torch.ones_like(right)
    standing[chosen_N] = correct_N.long()
    return (right.view(shape)[..., 1:] * standing.view(shape)[..., 1:].cumprod(-1)).sum()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device. To CUDA from pinned memory: from any other the copy waits for the device."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def target_outputs(target: FrozenTarget, batch: TrainingBatch, *, needs_last: bool) -> tuple[Tensor, Tensor | None]:
    """Features [R, W, F] as far as a block needs them; with `needs_last` of all tokens, and last hidden [R, S, H]."""
    if batch.features is not None:
        return batch.features, None
    if len(batch.documents) == len(batch.input_ids):
        if needs_last:
            return target.features_and_last(batch.input_ids)
        width = max(context.end for context in batch.blocks.contexts)
        return target.features(batch.input_ids[:, : max(width, 1)]), None
    # Each document by itself: side by side in one row they would attend to one another, and cost their square.
    parts = [batch.input_ids[:, document.first : document.end] for document in batch.documents]
    if not needs_last:
        return torch.cat([target.features(part) for part in parts], dim=1), None
    both = [target.features_and_last(part) for part in parts]
    return torch.cat([features for features, _ in both], dim=1), torch.cat([last for _, last in both], dim=1)


def block_embeddings(target: FrozenTarget, batch: TrainingBatch, config: DrafterConfig) -> Tensor:
    """[A, K, H] of `anchor, mask, mask, …` for every block."""
    anchors_A = batch.blocks.anchors
    ids_AK = torch.full((len(anchors_A), config.block_size), config.mask_token_id, device=anchors_A.device)
    ids_AK[:, 0] = batch.input_ids.flatten()[anchors_A]
    return target.embed(ids_AK)


def _places(batch: TrainingBatch, block_size: int) -> Tensor:
    """[A, K]: where each slot's label is in the rows laid end to end, kept within them."""
    slot_K = torch.arange(block_size, device=batch.input_ids.device)
    return (batch.blocks.anchors[:, None] + slot_K).clamp(max=batch.input_ids.numel() - 1)


def _dpace_weights(weights_AK: Tensor, chosen_N: Tensor, entropy_N: Tensor, objective: Objective) -> Tensor:
    """[N]: w_j = sum over m >= j of the chance that slots 1 … m are all accepted, each chance smoothed."""
    chances = torch.ones(weights_AK.numel(), dtype=torch.float32, device=weights_AK.device)
    chances[chosen_N] = (1 - objective.smoothing) * (-entropy_N).exp() + objective.smoothing
    accepted_AK = chances.view_as(weights_AK).cumprod(-1) * weights_AK
    return accepted_AK.flip(-1).cumsum(-1).flip(-1).flatten()[chosen_N]


def _config_of(drafter: nn.Module) -> DrafterConfig:
    inner = drafter.module if isinstance(drafter, DistributedDataParallel) else drafter
    config = inner.config
    if not isinstance(config, DrafterConfig):
        raise TypeError(f"{type(inner).__name__} is no drafter")
    return config
