"""Greedy decoding of one prompt: by the target alone, and by draft-and-verify, which must give the same tokens.

S tokens, K slots of a block, J drafted slots (K - 1), F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch

from dflash_pipeline.contracts.errors import Refused
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
) -> Decoded:
    """Speculative decoding: each round drafts a block, verifies it in one pass, keeps what the target agrees to."""
    _check_pair(target, drafter)
    config = drafter.config
    cache, context = target.new_cache(), DrafterCache()
    logits, features_SF = target.decode_step(_prompt(target, prompt_ids), cache, num_logits=1)
    tokens = [int(logits[-1].argmax())]
    verified = len(prompt_ids)
    accepted: list[int] = []
    while len(tokens) < max_new_tokens and tokens[-1] not in stop_ids:
        block_K = torch.full((config.block_size,), config.mask_token_id, device=target.device)
        block_K[0] = tokens[-1]
        hidden_KH = drafter.draft(features_SF, target.embed(block_K), context)
        block_K[1:] = target.logits(hidden_KH[1:].to(target.dtype)).argmax(-1)

        logits, features_KF = target.decode_step(block_K, cache, num_logits=config.block_size)
        answers_K = logits.argmax(-1)
        agreed = int((block_K[1:] == answers_K[:-1]).long().cumprod(0).sum())

        given = _until_stop(answers_K[: agreed + 1].tolist()[: max_new_tokens - len(tokens)], stop_ids)
        tokens += given
        accepted.append(len(given))
        verified += agreed + 1
        cut_back(cache, verified)
        features_SF = features_KF[: agreed + 1]
    return Decoded(tokens=tuple(tokens), accepted=tuple(accepted))


def _prompt(target: FrozenTarget, prompt_ids: Sequence[int]) -> torch.Tensor:
    if len(prompt_ids) == 0:
        raise Refused("an empty prompt", where="decoding", fix="give at least one token")
    return torch.as_tensor(prompt_ids, dtype=torch.long, device=target.device)


def _check_pair(target: FrozenTarget, drafter: Drafter) -> None:
    tapped, read = target.tap_layer_ids, drafter.config.tap_layer_ids
    if tapped != read:
        raise Refused(
            f"the target is tapped at {list(tapped)}, the drafter reads {list(read)}",
            where="decoding",
            fix="load the target with the drafter's tap_layer_ids",
        )


def _until_stop(tokens: list[int], stop_ids: AbstractSet[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens
