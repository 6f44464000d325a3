"""Loss of each slot over the whole vocabulary, without ever holding the logits of all slots.

A slot's loss depends on its own hidden state alone, and the output head is frozen. So the gradient of every loss by
its hidden state is made right after its logits, a chunk of slots at a time, and multiplied by what comes back later:
two products with the head in all, where computing chunks again in the backward pass would take three.

N slots, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_pipeline.model.target import FrozenTarget

LOGITS_PER_CHUNK = {"cpu": 2**22, "cuda": 2**28}
"""Logits that exist at once, at least a slot's: 16 MiB in float32 on a CPU, and 1 GiB on a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SlotLosses:
    losses: Tensor
    """[N] float32, with their graph: (1 - kl) * cross entropy + kl * divergence from the target."""
    cross_entropy: Tensor
    """[N] float32, without."""
    correct: Tensor
    """[N] bool: the best token is the label."""


def slot_losses(
    hidden_NH: Tensor, labels_N: Tensor, teachers_NH: Tensor | None, target: FrozenTarget, kl: float
) -> SlotLosses:
    """`teachers_NH` are the target's last hidden states where it predicts the labels; needed with `kl` above 0."""
    found = _SlotLosses.apply(hidden_NH, labels_N, teachers_NH, target, kl)
    losses, cross_entropy, correct = found
    return SlotLosses(losses=losses, cross_entropy=cross_entropy, correct=correct)


class _SlotLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, labels_N: Tensor, teachers_NH: Tensor | None, target: FrozenTarget, kl: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses_N = torch.empty(labels_N.shape, dtype=torch.float32, device=hidden_NH.device)
        entropy_N, correct_N = torch.empty_like(losses_N), torch.empty_like(labels_N, dtype=torch.bool)
        slopes_NH = torch.empty_like(hidden_NH) if ctx.needs_input_grad[0] else None
        size = max(1, LOGITS_PER_CHUNK[hidden_NH.device.type] // target.vocab_size)
        for first in range(0, labels_N.numel(), size):
            part = slice(first, first + size)
            logits_CV = target.logits(hidden_NH[part].to(target.dtype)).float()
            labels_C1 = labels_N[part, None]
            correct_N[part] = logits_CV.argmax(-1) == labels_N[part]
            log_sums_C1 = logits_CV.logsumexp(-1, keepdim=True)
            entropy_N[part] = (log_sums_C1 - logits_CV.gather(1, labels_C1)).squeeze(1)
            losses_N[part] = entropy_N[part]
            slopes_CV = logits_CV.sub_(log_sums_C1)  # Log chances, in place; chances further down.
            if teachers_NH is None:
                slopes_CV.exp_()
            else:
                teacher_CV = target.logits(teachers_NH[part]).float().log_softmax(-1)
                divergence_C = (teacher_CV.exp() * (teacher_CV - slopes_CV)).sum(-1)
                losses_N[part] = (1 - kl) * entropy_N[part] + kl * divergence_C
                slopes_CV.exp_().sub_(teacher_CV.exp_(), alpha=kl)
            slopes_CV.scatter_add_(1, labels_C1, torch.full_like(labels_C1, kl - 1, dtype=torch.float32))
            if slopes_NH is not None:
                slopes_NH[part] = target.through_head(slopes_CV.to(target.dtype))
        if slopes_NH is not None:
            ctx.save_for_backward(slopes_NH)
        ctx.mark_non_differentiable(entropy_N, correct_N)
        return losses_N, entropy_N, correct_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (slopes_NH,) = ctx.saved_tensors
        return slopes_NH * grad_N[:, None], None, None, None, None
