"""Decoding of many prompts together: rows of different lengths, each at its own round, with the tokens of one by one.

A row that is done makes room for the next prompt that waits. Targets that cannot decode rows of different lengths are
decoded one prompt at a time.

R rows, S tokens, K slots of a block, J drafted slots (K - 1), V vocabulary, F features.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.evaluation.choice import GREEDY, Choice, Turn, draft_tokens, first_tokens, verified
from dflash_pipeline.evaluation.decode import Decoded, check_pair, draft_and_verify, greedy_decode, up_to_the_end
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.drafter_rows import draft_rows, extend_rows
from dflash_pipeline.model.rows import Rows
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.model.target_rows import TargetRows


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """How prompts are decoded."""

    max_new_tokens: int
    stop_ids: frozenset[int]
    batch_size: int = 16
    """Prompts decoded together: it changes no token but where rounding decides between two."""
    choice: Choice = GREEDY

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.batch_size < 1:
            raise ContractBroken(
                f"max_new_tokens {self.max_new_tokens}, batch size {self.batch_size}",
                where="decoding",
                fix="each must be at least 1",
            )


def draft_and_verify_all(
    target: FrozenTarget,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    numbers: Sequence[int],
) -> list[Decoded]:
    """Every prompt by draft-and-verify. `numbers` are theirs among all: draws at a temperature depend on them."""
    check_pair(target, drafter)
    if _one_by_one(target, decoding):
        return [
            draft_and_verify(
                target,
                drafter,
                prompt,
                max_new_tokens=decoding.max_new_tokens,
                stop_ids=decoding.stop_ids,
                choice=decoding.choice,
                number=number,
            )
            for prompt, number in zip(prompts, numbers, strict=True)
        ]
    return _Drafting(target, prompts, decoding, numbers, drafter).run()


def greedy_decode_all(
    target: FrozenTarget, prompts: Sequence[Sequence[int]], decoding: Decoding
) -> list[tuple[int, ...]]:
    """Every prompt by the target alone, always with its best token."""
    if _one_by_one(target, decoding):
        return [
            tuple(greedy_decode(target, p, max_new_tokens=decoding.max_new_tokens, stop_ids=decoding.stop_ids))
            for p in prompts
        ]
    return [decoded.tokens for decoded in _Alone(target, prompts, decoding, range(len(prompts))).run()]


def _one_by_one(target: FrozenTarget, decoding: Decoding) -> bool:
    return decoding.batch_size == 1 or not target.decodes_rows


@dataclass(kw_only=True, slots=True, eq=False)
class _Row:
    """A prompt on its way."""

    index: int
    """In the list of prompts."""
    number: int
    """Among all prompts."""
    tokens: list[int]
    accepted: list[int] = field(default_factory=list)
    cut: bool = False


class _Alone:
    """Rows that go on by the target's best token."""

    def __init__(
        self,
        target: FrozenTarget,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        numbers: Sequence[int],
    ) -> None:
        if any(len(prompt) == 0 for prompt in prompts):
            raise Refused("an empty prompt", where="decoding", fix="give at least one token")
        target.new_cache()  # Refuses a target whose cache cannot take back a draft.
        self._target, self._decoding, self._prompts, self._numbers = target, decoding, prompts, numbers
        # The longest first: rows that are together are then of like length, and buffers need not grow.
        self._waiting = deque(sorted(range(len(prompts)), key=lambda index: -len(prompts[index])))
        self._done: dict[int, Decoded] = {}
        self._rows: list[_Row] = []
        self._cache = TargetRows(min(decoding.batch_size, len(prompts)))
        self._choice = GREEDY

    @torch.no_grad()
    def run(self) -> list[Decoded]:
        for slot in range(len(self._cache.rows.lengths)):
            self._enter(slot)
        self._settle()
        while self._rows:
            self._advance()
            self._settle()
        return [self._done[index] for index in range(len(self._prompts))]

    def _advance(self) -> None:
        device = self._target.device
        last_R1 = torch.tensor([row.tokens[-1:] for row in self._rows], device=device)
        place = self._cache.rows.place(1, device=device)
        logits, _ = self._target.decode_rows(last_R1, self._cache, place, keep=torch.tensor([0], device=device))
        for slot, (row, token) in enumerate(zip(self._rows, logits[:, 0].argmax(-1).tolist(), strict=True)):
            row.tokens.append(token)
            self._cache.rows.lengths[slot] += 1

    def _settle(self) -> None:
        """Rows that are done leave; prompts that wait take their places, and places that nobody takes go."""
        while done := [slot for slot, row in enumerate(self._rows) if self._ended(row)]:
            for slot in done:
                row = self._rows[slot]
                self._done[row.index] = Decoded(tokens=tuple(row.tokens), accepted=tuple(row.accepted), cut=row.cut)
            taken = done[: len(self._waiting)]
            for slot in taken:
                self._enter(slot)
            if len(taken) < len(done):
                self._keep([slot for slot in range(len(self._rows)) if slot not in set(done[len(taken) :])])

    def _ended(self, row: _Row) -> bool:
        return len(row.tokens) >= self._decoding.max_new_tokens or row.tokens[-1] in self._decoding.stop_ids

    def _keep(self, slots: Sequence[int]) -> None:
        self._rows = [self._rows[slot] for slot in slots]
        self._cache.rows.keep(slots)

    def _enter(self, slot: int) -> None:
        """The next prompt that waits takes this place: it is read, and its first token found.

        Each by itself: prompts are long enough to keep a processor busy, and of different lengths.
        """
        index, device = self._waiting.popleft(), self._target.device
        ids_1S = torch.as_tensor(self._prompts[index], dtype=torch.long, device=device)[None]
        self._cache.rows.lengths[slot] = 0
        place = self._cache.rows.place(ids_1S.shape[1], rows=[slot], device=device)
        last = torch.tensor([ids_1S.shape[1] - 1], device=device)
        logits_11V, features_1SF = self._target.decode_rows(ids_1S, self._cache, place, keep=last)
        row = _Row(index=index, number=self._numbers[index], tokens=[])
        row.tokens += first_tokens(logits_11V[:, 0], self._choice, _turn([row], 0)).tolist()
        self._rows[slot : slot + 1] = [row]
        self._cache.rows.lengths[slot] = ids_1S.shape[1]
        self._entered(slot, features_1SF)

    def _entered(self, slot: int, features_1SF: Tensor) -> None:
        """What there is to do with the features of a prompt that was read."""


class _Drafting(_Alone):
    """Rows that go on by rounds of drafting and verification."""

    def __init__(
        self,
        target: FrozenTarget,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        numbers: Sequence[int],
        drafter: Drafter,
    ) -> None:
        super().__init__(target, prompts, decoding, numbers)
        self._drafter = drafter
        self._context = Rows(lengths=list(self._cache.rows.lengths))
        self._choice = decoding.choice

    def _advance(self) -> None:
        target, config, choice, device = self._target, self._drafter.config, self._choice, self._target.device
        turn = _turn(self._rows, 1)
        block_RK = torch.full((len(self._rows), config.block_size), config.mask_token_id, device=device)
        block_RK[:, 0] = torch.tensor([row.tokens[-1] for row in self._rows], device=device)
        hidden_RKH = draft_rows(self._drafter, self._context, target.embed(block_RK))
        draft_logits_RJV = target.logits(hidden_RKH[:, 1:].contiguous().to(target.dtype))
        block_RK[:, 1:] = draft_tokens(draft_logits_RJV, choice, turn)

        place = self._cache.rows.place(config.block_size, device=device)
        keep = torch.arange(config.block_size, device=device)
        logits_RKV, features_RKF = target.decode_rows(block_RK, self._cache, place, keep=keep)
        verdict = verified(block_RK[:, 1:], draft_logits_RJV, logits_RKV, choice, turn)

        drafted, counts = block_RK[:, 1:].tolist(), (verdict.agreed + 1).tolist()
        for slot, (row, following) in enumerate(zip(self._rows, verdict.following.tolist(), strict=True)):
            offered = [*drafted[slot][: counts[slot] - 1], following]
            room = self._decoding.max_new_tokens - len(row.tokens)
            given = up_to_the_end(offered[:room], self._decoding.stop_ids)
            row.tokens += given
            row.accepted.append(len(given))
            row.cut = len(given) < len(offered)
            self._cache.rows.lengths[slot] += counts[slot]
        extend_rows(self._drafter, self._context, features_RKF[:, : max(counts)], counts, range(len(self._rows)))

    def _keep(self, slots: Sequence[int]) -> None:
        super()._keep(slots)
        self._context.keep(slots)

    def _entered(self, slot: int, features_1SF: Tensor) -> None:
        self._context.lengths[slot] = 0
        extend_rows(self._drafter, self._context, features_1SF, [features_1SF.shape[1]], [slot])


def _turn(rows: Sequence[_Row], ahead: int) -> Turn:
    """The draws of each row's rounds so far, and `ahead` more."""
    return Turn(
        prompts=np.asarray([row.number for row in rows]),
        rounds=np.asarray([len(row.accepted) + ahead for row in rows]),
    )
