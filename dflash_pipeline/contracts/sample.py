"""A conversation as tokens: what training reads, and why some conversations give none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.conversation import Split
from dflash_pipeline.contracts.errors import ContractBroken

DropReason = Literal[
    "excluded",
    "weight",
    "template_error",
    "spans_not_found",
    "control_text",
    "unknown_token",
    "too_long",
    "no_supervised_tokens",
    "too_few_supervised_tokens",
]
"""Why a conversation gave no sample, in the order in which they are looked for."""
UNSEEN: tuple[DropReason, ...] = ("excluded", "weight")
"""Reasons for which a conversation is not looked at: they say nothing about its tokens."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sample:
    """One training example: its tokens, and which of them carry a loss."""

    conversation_id: str
    split: Split
    input_ids: npt.NDArray[np.int32]
    spans: tuple[tuple[int, int], ...]
    """Supervised tokens, from and up to (not with) these positions; ascending, never empty, never overlapping."""
    num_cut: int = 0
    """Tokens that the conversation had beyond the longest length, and that were cut off at its end."""

    def __post_init__(self) -> None:
        where = f"sample of conversation {self.conversation_id!r}"
        if self.split not in get_args(Split):
            raise ContractBroken(f"split {self.split!r}", where=where, fix="use train or validation")
        if self.input_ids.dtype != np.int32 or self.input_ids.ndim != 1:
            raise ContractBroken(
                f"token ids of type {self.input_ids.dtype} in {self.input_ids.ndim} dimensions",
                where=where,
                fix="give one row of int32",
            )
        if self.num_cut < 0:
            raise ContractBroken(f"{self.num_cut} tokens cut off", where=where, fix="count from 0")
        reached = 0
        for start, end in self.spans:
            if not reached <= start < end <= self.input_ids.size:
                raise ContractBroken(
                    f"supervised span {start}-{end} after {reached}, of {self.input_ids.size} tokens",
                    where=where,
                    fix="give ascending spans of at least one token that lie inside the sample",
                )
            reached = end
        if not self.spans:
            raise ContractBroken(
                "no supervised token", where=where, fix="make it a DroppedSample: training would learn nothing from it"
            )

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.size)

    @property
    def num_supervised(self) -> int:
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True, kw_only=True, slots=True)
class DroppedSample:
    """A conversation that gave no sample."""

    conversation_id: str
    reason: DropReason

    def __post_init__(self) -> None:
        if self.reason not in get_args(DropReason):
            raise ContractBroken(
                f"reason {self.reason!r}",
                where=f"dropped conversation {self.conversation_id!r}",
                fix=f"use one of {', '.join(get_args(DropReason))}",
            )
