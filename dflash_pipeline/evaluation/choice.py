"""How tokens are chosen and drafts are verified: the best token always, or at random at a temperature.

At a temperature a drafted token x is kept with probability min(1, p(x) / q(x)), p the target's distribution and q the
drafter's; instead of the first that is not kept, a token is drawn from the positive part of p - q. What comes out is
distributed as p (Leviathan et al., arXiv 2211.17192, appendix A.1; Chen et al., arXiv 2302.01318, theorem 1).

Every draw is a hash of (seed, prompt, round, slot, use): what is decoded beside a prompt changes none of its draws.

R rows, K slots of a block, J drafted slots (K - 1), V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.hashing import mix

_DRAFT, _KEEP, _FOLLOW = range(3)
"""What a draw is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Temperature 0 takes the best token."""

    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ContractBroken(f"temperature {self.temperature}", where="decoding", fix="give 0 or a positive number")


GREEDY = Choice()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Turn:
    """Whose draws are meant: for every row, the number of its prompt, and of its round from 1."""

    prompts: NDArray[np.int64]
    rounds: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Verdict:
    """What verification leaves of a draft."""

    agreed: Tensor
    """[R]: drafted tokens that are kept, from the first on."""
    following: Tensor
    """[R]: the target's own token after them."""


def first_tokens(logits_RV: Tensor, choice: Choice, turn: Turn) -> Tensor:
    """[R]: the target's own token after each prompt."""
    if choice.temperature == 0:
        return logits_RV.argmax(-1)
    uniforms_R1 = _uniforms(choice, turn, num_slots=1, use=_FOLLOW)
    return _drawn(_chances(logits_RV, choice), uniforms_R1[:, 0].to(logits_RV.device))


def draft_tokens(logits_RJV: Tensor, choice: Choice, turn: Turn) -> Tensor:
    """[R, J]: each slot's token by the drafter alone."""
    if choice.temperature == 0:
        return logits_RJV.argmax(-1)
    uniforms_RJ = _uniforms(choice, turn, num_slots=logits_RJV.shape[1], use=_DRAFT)
    return _drawn(_chances(logits_RJV, choice), uniforms_RJ.to(logits_RJV.device))


def verified(drafted_RJ: Tensor, draft_logits_RJV: Tensor, logits_RKV: Tensor, choice: Choice, turn: Turn) -> Verdict:
    """How much of each draft stands. `logits_RKV` are the target's after the anchor and after each drafted token."""
    if choice.temperature == 0:
        answers_RK = logits_RKV.argmax(-1)
        agreed_R = (drafted_RJ == answers_RK[:, :-1]).long().cumprod(-1).sum(-1)
        return Verdict(agreed=agreed_R, following=answers_RK.gather(1, agreed_R[:, None])[:, 0])
    device = logits_RKV.device
    target_RKV, draft_RJV = _chances(logits_RKV, choice), _chances(draft_logits_RJV, choice)
    kept_RJ = kept(
        drafted_RJ,
        target_RKV[:, :-1],
        draft_RJV,
        _uniforms(choice, turn, num_slots=drafted_RJ.shape[1], use=_KEEP).to(device),
    )
    agreed_R = kept_RJ.long().cumprod(-1).sum(-1)
    # After a whole draft nothing was refused: the token after it comes from the target's distribution as it is.
    refused_RKV = torch.nn.functional.pad(draft_RJV, (0, 0, 0, 1))
    row_R = torch.arange(agreed_R.shape[0], device=device)
    left_RV = remainder(target_RKV[row_R, agreed_R], refused_RKV[row_R, agreed_R])
    uniforms_R1 = _uniforms(choice, turn, num_slots=1, use=_FOLLOW)
    return Verdict(agreed=agreed_R, following=_drawn(left_RV, uniforms_R1[:, 0].to(device)))


def kept(drafted_RJ: Tensor, target_RJV: Tensor, draft_RJV: Tensor, uniforms_RJ: Tensor) -> Tensor:
    """[R, J] bool: true with probability min(1, p / q) of the drafted token."""
    at_RJ1 = drafted_RJ[..., None]
    return uniforms_RJ * draft_RJV.gather(-1, at_RJ1)[..., 0] < target_RJV.gather(-1, at_RJ1)[..., 0]


def remainder(target_RV: Tensor, draft_RV: Tensor) -> Tensor:
    """[R, V], not normed: the positive part of p - q, which a token is drawn from where one was refused."""
    left_RV = (target_RV - draft_RV).clamp(min=0)
    # Equal but for rounding: nothing is left, and nothing had to be refused.
    return torch.where(left_RV.sum(-1, keepdim=True) > 0, left_RV, target_RV)


def _chances(logits: Tensor, choice: Choice) -> Tensor:
    # In float64: the difference of two chances that are alike is what a refused token is drawn from.
    return (logits.double() / choice.temperature).softmax(-1)


def _drawn(weights: Tensor, uniforms: Tensor) -> Tensor:
    """[..]: the token at which the sum of weights [.., V] passes each uniform's share of the whole."""
    sums = weights.cumsum(-1)
    wanted = uniforms[..., None] * sums[..., -1:]
    return torch.searchsorted(sums, wanted, right=True)[..., 0].clamp(max=weights.shape[-1] - 1)


def _uniforms(choice: Choice, turn: Turn, *, num_slots: int, use: int) -> Tensor:
    """[R, slots] float64 in [0, 1)."""
    slots = np.arange(num_slots)
    hashed = mix(choice.seed, turn.prompts[:, None], turn.rounds[:, None], slots, use)
    return torch.from_numpy((hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53)
