"""Acceptance length by real decoding: how many tokens a round of drafting yields, the target's own among them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.errors import ContractBroken, Failed
from dflash_pipeline.evaluation.decode import draft_and_verify, greedy_decode
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget

_TWO_SIDED_95 = 1.959964


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptResult:
    """One prompt decoded. Results of prompts shared out among processes are put together by `combine_results`."""

    num_tokens: int
    histogram: tuple[int, ...]
    """Rounds with acceptance length 1, 2, … block size. None at all when the answer ends with its first token."""
    lossless: bool
    """The tokens equal those of the target alone."""
    seconds: float
    """Time of draft-and-verify, without the check against the target alone."""

    def __post_init__(self) -> None:
        if len(self.histogram) < 2 or min(self.histogram) < 0:
            raise ContractBroken(
                f"histogram {list(self.histogram)}",
                where="acceptance",
                fix="give a count for each length up to the block size",
            )

    @property
    def num_rounds(self) -> int:
        return sum(self.histogram)

    @property
    def num_accepted(self) -> int:
        """Sum of acceptance lengths."""
        return sum(length * rounds for length, rounds in enumerate(self.histogram, start=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceReport:
    """Acceptance over prompts. Plain values, to be stored and compared."""

    num_prompts: int
    num_rounds: int
    num_tokens: int
    mean: float
    """Mean over prompts of each prompt's mean acceptance length: the figure z-lab quotes."""
    pooled: float
    """Mean over all rounds."""
    interval: tuple[float, float]
    """95 % interval of `mean` over prompts, by the normal law; the whole range when there is one prompt only."""
    histogram: tuple[int, ...]
    per_position: tuple[float, ...]
    """For drafted slot 1, 2, …: fraction of rounds that kept it."""
    lossless: bool
    num_differing: int
    """Prompts whose tokens differ from the target's own."""
    seconds: float


def measure_acceptance(
    target: FrozenTarget,
    drafter: Drafter,
    prompts: Sequence[NDArray[np.integer]],
    *,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
) -> AcceptanceReport:
    """Decode every prompt by draft-and-verify, and again by the target alone to compare."""
    results = [
        measure_prompt(target, drafter, prompt, max_new_tokens=max_new_tokens, stop_ids=stop_ids) for prompt in prompts
    ]
    return combine_results(results)


def measure_prompt(
    target: FrozenTarget,
    drafter: Drafter,
    prompt: NDArray[np.integer],
    *,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
) -> PromptResult:
    """Acceptance on one prompt."""
    prompt_ids = prompt.tolist()
    started = time.perf_counter()
    decoded = draft_and_verify(target, drafter, prompt_ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
    seconds = time.perf_counter() - started
    alone = greedy_decode(target, prompt_ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
    counts = np.bincount(np.asarray(decoded.accepted, dtype=np.int64), minlength=drafter.config.block_size + 1)
    return PromptResult(
        num_tokens=len(decoded.tokens),
        histogram=tuple(counts[1:].tolist()),
        lossless=decoded.tokens == tuple(alone),
        seconds=seconds,
    )


def combine_results(results: Sequence[PromptResult]) -> AcceptanceReport:
    """One report over prompts, in whatever processes they were decoded."""
    sizes = {len(result.histogram) for result in results}
    if len(sizes) > 1:
        raise ContractBroken(
            f"results of block sizes {sorted(sizes)}", where="acceptance", fix="combine results of one drafter"
        )
    drafted = [result for result in results if result.num_rounds]
    if not drafted:
        raise Failed(
            f"no round of drafting took place in {len(results)} prompts",
            where="acceptance",
            fix="give prompts whose answers are longer than one token, and max_new_tokens of at least 2",
        )
    means = [result.num_accepted / result.num_rounds for result in drafted]
    histogram = np.sum([result.histogram for result in drafted], axis=0)
    num_rounds = int(histogram.sum())
    at_least = np.cumsum(histogram[::-1])[::-1]
    differing = sum(not result.lossless for result in results)
    return AcceptanceReport(
        num_prompts=len(results),
        num_rounds=num_rounds,
        num_tokens=sum(result.num_tokens for result in results),
        mean=float(np.mean(means)),
        pooled=sum(result.num_accepted for result in drafted) / num_rounds,
        interval=_interval(means, block_size=histogram.size),
        histogram=tuple(histogram.tolist()),
        per_position=tuple((at_least[1:] / num_rounds).tolist()),
        lossless=differing == 0,
        num_differing=differing,
        seconds=sum(result.seconds for result in results),
    )


def _interval(means: Sequence[float], *, block_size: int) -> tuple[float, float]:
    if len(means) < 2:
        return (1.0, float(block_size))
    middle, half = float(np.mean(means)), _TWO_SIDED_95 * float(np.std(means, ddof=1)) / math.sqrt(len(means))
    return (max(1.0, middle - half), min(float(block_size), middle + half))
