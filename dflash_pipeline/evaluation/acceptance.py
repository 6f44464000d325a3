"""Acceptance length by real decoding: how many tokens a round of drafting yields, the target's own among them.

A round is whole when the answer went on past it. One that the end of the answer cut, or the limit of new tokens, would
have yielded more: it is counted apart and enters no mean.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.errors import ContractBroken, Failed
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.evaluation.bootstrap import mean_interval
from dflash_pipeline.evaluation.choice import GREEDY, Choice
from dflash_pipeline.evaluation.decode import Decoded
from dflash_pipeline.evaluation.decode_rows import Decoding, draft_and_verify_all, greedy_decode_all
from dflash_pipeline.evaluation.prompts import Prompt
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptAcceptance:
    """One prompt decoded. Those of prompts shared out among processes are put together by `combine_results`."""

    source: str
    """Where the prompt comes from: a file, or a category of one."""
    prompt: str
    """Fingerprint of its tokens."""
    prompt_tokens: int
    num_tokens: int
    """New tokens."""
    histogram: tuple[int, ...]
    """Whole rounds with acceptance length 1, 2, … block size."""
    cut_tokens: int
    """What the round yielded that the end of the answer cut; 0 when none was."""
    lossless: bool | None
    """The tokens equal those of the target alone; None when they were not compared."""

    def __post_init__(self) -> None:
        counts = (*self.histogram, self.cut_tokens, self.num_tokens - 1, self.prompt_tokens - 1)
        if len(self.histogram) < 2 or min(counts) < 0 or self.num_accepted + self.cut_tokens != self.num_tokens - 1:
            raise ContractBroken(
                f"histogram {list(self.histogram)}, {self.cut_tokens} tokens cut, {self.num_tokens} tokens",
                where="acceptance",
                fix="give a count for each length up to the block size; rounds yield every token but the first",
            )

    @property
    def num_rounds(self) -> int:
        """Whole rounds."""
        return sum(self.histogram)

    @property
    def num_accepted(self) -> int:
        """Tokens that whole rounds yielded."""
        return sum(length * rounds for length, rounds in enumerate(self.histogram, start=1))

    @property
    def mean(self) -> float | None:
        """Acceptance length; None without a whole round."""
        return self.num_accepted / self.num_rounds if self.num_rounds else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CutRounds:
    """Rounds that the end of an answer cut, at most one a prompt."""

    num_rounds: int
    num_tokens: int
    """What they yielded before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupAcceptance:
    """The prompts of one source, or of one range of prompt lengths, that have a whole round."""

    name: str
    num_prompts: int
    num_rounds: int
    mean: float
    interval: tuple[float, float]
    """As the report's."""
    pooled: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceReport:
    """Acceptance over prompts. Plain values, to be stored and compared."""

    num_prompts: int
    num_rounds: int
    """Whole rounds."""
    num_tokens: int
    mean: float
    """Mean over prompts of each prompt's mean acceptance length: the figure z-lab quotes."""
    pooled: float
    """Mean over all rounds."""
    interval: tuple[float, float]
    """95 % interval of `mean` by the bootstrap over prompts; 1 to the block size when there is one prompt only."""
    histogram: tuple[int, ...]
    per_position: tuple[float, ...]
    """For drafted slot 1, 2, …: fraction of rounds that kept it."""
    cut: CutRounds
    by_source: tuple[GroupAcceptance, ...]
    """In the order of names."""
    by_length: tuple[GroupAcceptance, ...]
    """By tokens of the prompt, from one power of two to the next."""
    temperature: float
    lossless: bool | None
    """None at a temperature, where there is no one text to compare with."""
    num_differing: int
    """Prompts whose tokens differ from the target's own."""
    seconds: float
    """Time of draft-and-verify, added up over processes; without the check against the target alone."""
    prompts: tuple[PromptAcceptance, ...]

    @property
    def block_size(self) -> int:
        return len(self.histogram)


def measure_acceptance(
    target: FrozenTarget,
    drafter: Drafter,
    prompts: Sequence[NDArray[np.integer]],
    *,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
    batch_size: int = 16,
    choice: Choice = GREEDY,
    sources: Sequence[str] | None = None,
) -> AcceptanceReport:
    """Decode every prompt by draft-and-verify and, where decoding is greedy, by the target alone to compare.

    Prompts are given as token ids; `sources` names where each comes from.
    """
    named = [
        Prompt(ids=ids, source=source) for ids, source in zip(prompts, sources or [""] * len(prompts), strict=True)
    ]
    decoding = Decoding(
        max_new_tokens=max_new_tokens, stop_ids=frozenset(stop_ids), batch_size=batch_size, choice=choice
    )
    results, seconds = measure_prompts(target, drafter, named, decoding, numbers=range(len(named)))
    return combine_results(results, temperature=choice.temperature, seconds=seconds)


def measure_prompts(
    target: FrozenTarget, drafter: Drafter, prompts: Sequence[Prompt], decoding: Decoding, *, numbers: Sequence[int]
) -> tuple[list[PromptAcceptance], float]:
    """Acceptance on each prompt, and the seconds of draft-and-verify. `numbers` are theirs among all prompts."""
    ids = [prompt.ids.tolist() for prompt in prompts]
    started = time.perf_counter()
    decoded = draft_and_verify_all(target, drafter, ids, decoding, numbers=numbers)
    seconds = time.perf_counter() - started
    block_size = drafter.config.block_size
    if decoding.choice.temperature > 0:
        return [_result(p, d, block_size, None) for p, d in zip(prompts, decoded, strict=True)], seconds
    alone = greedy_decode_all(target, ids, decoding)
    return [
        _result(p, d, block_size, d.tokens == tokens) for p, d, tokens in zip(prompts, decoded, alone, strict=True)
    ], seconds


def _result(prompt: Prompt, decoded: Decoded, block_size: int, lossless: bool | None) -> PromptAcceptance:
    num_whole = len(decoded.accepted) - decoded.cut
    whole, cut = decoded.accepted[:num_whole], decoded.accepted[num_whole:]
    counts = np.bincount(np.asarray(whole, dtype=np.int64), minlength=block_size + 1)
    return PromptAcceptance(
        source=prompt.source,
        prompt=fingerprint(ids=prompt.ids.astype(np.int64)),
        prompt_tokens=prompt.ids.size,
        num_tokens=len(decoded.tokens),
        histogram=tuple(counts[1:].tolist()),
        cut_tokens=sum(cut),
        lossless=lossless,
    )


def combine_results(
    results: Sequence[PromptAcceptance], *, temperature: float = 0.0, seconds: float = 0.0
) -> AcceptanceReport:
    """One report over prompts, in whatever processes they were decoded."""
    sizes = {len(result.histogram) for result in results}
    if len(sizes) > 1:
        raise ContractBroken(
            f"results of block sizes {sorted(sizes)}", where="acceptance", fix="combine results of one drafter"
        )
    drafted = [result for result in results if result.num_rounds]
    if not drafted:
        raise Failed(
            f"no whole round of drafting took place in {len(results)} prompts",
            where="acceptance",
            fix="give prompts whose answers are longer than a block, and a max_new_tokens above the block size",
        )
    whole = _group("all", drafted)
    histogram = np.sum([result.histogram for result in drafted], axis=0)
    at_least = np.cumsum(histogram[::-1])[::-1]
    compared = [result.lossless for result in results if result.lossless is not None]
    return AcceptanceReport(
        num_prompts=len(results),
        num_rounds=whole.num_rounds,
        num_tokens=sum(result.num_tokens for result in results),
        mean=whole.mean,
        pooled=whole.pooled,
        interval=whole.interval,
        histogram=tuple(histogram.tolist()),
        per_position=tuple((at_least[1:] / whole.num_rounds).tolist()),
        cut=CutRounds(
            num_rounds=sum(result.cut_tokens > 0 for result in results),
            num_tokens=sum(result.cut_tokens for result in results),
        ),
        by_source=_groups(drafted, names=[result.source for result in drafted]),
        by_length=_by_length(drafted),
        temperature=temperature,
        lossless=all(compared) if compared else None,
        num_differing=sum(not same for same in compared),
        seconds=seconds,
        prompts=tuple(results),
    )


def _group(name: str, drafted: Sequence[PromptAcceptance]) -> GroupAcceptance:
    means = [result.num_accepted / result.num_rounds for result in drafted]
    num_rounds = sum(result.num_rounds for result in drafted)
    return GroupAcceptance(
        name=name,
        num_prompts=len(drafted),
        num_rounds=num_rounds,
        mean=float(np.mean(means)),
        interval=mean_interval(means) if len(means) > 1 else (1.0, float(len(drafted[0].histogram))),
        pooled=sum(result.num_accepted for result in drafted) / num_rounds,
    )


def _groups(drafted: Sequence[PromptAcceptance], names: Sequence[str]) -> tuple[GroupAcceptance, ...]:
    return tuple(
        _group(wanted, [result for result, name in zip(drafted, names, strict=True) if name == wanted])
        for wanted in sorted(set(names))
    )


def _by_length(drafted: Sequence[PromptAcceptance]) -> tuple[GroupAcceptance, ...]:
    powers = [result.prompt_tokens.bit_length() for result in drafted]
    return tuple(
        _group(
            f"{2 ** (power - 1)} to {2**power - 1}",
            [result for result, other in zip(drafted, powers, strict=True) if other == power],
        )
        for power in sorted(set(powers))
    )
