"""What an export says of its own acceptance: a few prompts of its report as tokens, and what each of them gave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dflash_pipeline.contracts.errors import ContractBroken

CARRIED = "acceptance.json"
MOST_PROMPTS = 8
"""Decoded again by every verification, so few; together some hundred rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedPrompt:
    """One prompt of the report."""

    token_ids: tuple[int, ...]
    mean: float
    """Its mean acceptance length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedAcceptance:
    """The report's figures on all its prompts, and some of these to measure again. Greedy decoding."""

    weights: str
    """SHA-256 of the model.safetensors that was measured."""
    num_prompts: int
    mean: float
    interval: tuple[float, float]
    lossless: bool
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    block_size: int
    prompts: tuple[CarriedPrompt, ...]

    def __post_init__(self) -> None:
        low, high = self.interval
        if not 1 <= low <= self.mean <= high <= self.block_size:
            raise ContractBroken(
                f"acceptance length {self.mean} with interval {low} to {high} and blocks of {self.block_size}",
                where=CARRIED,
                fix="carry what was measured: a mean within its interval, from 1 to the block size",
            )
        own = math.fsum(prompt.mean for prompt in self.prompts) / max(len(self.prompts), 1)
        if len(self.prompts) == self.num_prompts and abs(own - self.mean) > 1e-9 * own:
            raise ContractBroken(
                f"acceptance length {self.mean}, where its prompts have {own}",
                where=CARRIED,
                fix="carry what was measured",
            )
        if not self.prompts or any(not prompt.token_ids for prompt in self.prompts):
            raise ContractBroken(
                "no prompt to measure again, or one without tokens",
                where=CARRIED,
                fix="carry a few prompts of the report, each with its tokens",
            )
        if self.max_new_tokens < 2:
            raise ContractBroken(
                f"answers of {self.max_new_tokens} tokens hold no round of drafting",
                where=CARRIED,
                fix="measure with max_new_tokens of at least 2",
            )


def carries(folder: Path) -> bool:
    return (folder / CARRIED).is_file()
