"""Decoding of one prompt: by the target alone, and by draft-and-verify, which greedily must give the same tokens.

S tokens, K slots of a block, J drafted slots (K - 1), F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import torch

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.choice import GREEDY, Choice, Turn, draft_tokens, first_tokens, verified
from dflash_pipeline.model.drafter import Drafter, DrafterCache
from dflash_pipeline.model.target import FrozenTarget, cut_back


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """What draft-and-verify gave for one prompt."""

    tokens: tuple[int, ...]
    """New tokens; a stop token is the last."""
    accepted: tuple[int, ...]
    """Acceptance length of each round: drafted tokens kept + the target's own, 1 to block size. Tokens after the end of
    the answer are not counted, so all rounds together gave every token but the first."""
    cut: bool
    """The answer ended inside the last round: it would have yielded more."""


def greedy_decode(
    target: FrozenTarget, prompt_ids: Sequence[int], *, max_new_tokens: int, stop_ids: AbstractSet[int]
) -> list[int]:
    """Plain cached decoding, one token at a time: the truth that draft-and-verify is held to."""
    cache = target.new_cache()
    logits, _ = target.decode_step(_prompt(target, prompt_ids), cache, num_logits=1)
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < max_new_tokens and tokens[-1] not in stop_ids:
        logits, _ = target.decode_step(torch.tensor(tokens[-1:], device=target.device), cache, num_logits=1)
        tokens.append(int(logits[-1].argmax()))
    return tokens


@torch.no_grad()
def draft_and_verify(
    target: FrozenTarget,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
    choice: Choice = GREEDY,
    number: int = 0,
) -> Decoded:
    """Speculative decoding: each round drafts a block, verifies it in one pass, keeps what the target agrees to.

    `number` is the prompt's among all prompts: what is drawn at a temperature depends on it.
    """
    check_pair(target, drafter)
    config = drafter.config
    cache, context = target.new_cache(), DrafterCache()
    logits, features_SF = target.decode_step(_prompt(target, prompt_ids), cache, num_logits=1)
    tokens = first_tokens(logits, choice, _turn(number, 0)).tolist()
    length = len(prompt_ids)
    accepted: list[int] = []
    cut = False
    while len(tokens) < max_new_tokens and tokens[-1] not in stop_ids:
        turn = _turn(number, len(accepted) + 1)
        block_K = torch.full((config.block_size,), config.mask_token_id, device=target.device)
        block_K[0] = tokens[-1]
        hidden_KH = drafter.draft(features_SF, target.embed(block_K), context)
        draft_logits_1JV = target.logits(hidden_KH[1:].to(target.dtype))[None]
        block_K[1:] = draft_tokens(draft_logits_1JV, choice, turn)[0]

        logits_KV, features_KF = target.decode_step(block_K, cache, num_logits=config.block_size)
        verdict = verified(block_K[None, 1:], draft_logits_1JV, logits_KV[None], choice, turn)
        agreed = int(verdict.agreed)

        offered = [*block_K[1 : agreed + 1].tolist(), int(verdict.following)]
        given = up_to_the_end(offered[: max_new_tokens - len(tokens)], stop_ids)
        tokens += given
        accepted.append(len(given))
        cut = len(given) < len(offered)
        length += agreed + 1
        cut_back(cache, length)
        features_SF = features_KF[: agreed + 1]
    return Decoded(tokens=tuple(tokens), accepted=tuple(accepted), cut=cut)


def check_pair(target: FrozenTarget, drafter: Drafter) -> None:
    """Refuse a target that is tapped elsewhere than the drafter reads."""
    tapped, read = target.tap_layer_ids, drafter.config.tap_layer_ids
    if tapped != read:
        raise Refused(
            f"the target is tapped at {list(tapped)}, the drafter reads {list(read)}",
            where="decoding",
            fix="load the target with the drafter's tap_layer_ids",
        )


def up_to_the_end(tokens: list[int], stop_ids: AbstractSet[int]) -> list[int]:
    """Tokens up to the first stop token, itself included."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens


def _turn(number: int, round_number: int) -> Turn:
    return Turn(prompts=np.asarray([number]), rounds=np.asarray([round_number]))


def _prompt(target: FrozenTarget, prompt_ids: Sequence[int]) -> torch.Tensor:
    if len(prompt_ids) == 0:
        raise Refused("an empty prompt", where="decoding", fix="give at least one token")
    return torch.as_tensor(prompt_ids, dtype=torch.long, device=target.device)
