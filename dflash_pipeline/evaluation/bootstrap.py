"""Intervals by the bootstrap over prompts: what another draw of as many prompts would have given.

Percentile intervals (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). Rounds of one prompt
are alike, so that prompts are drawn, never rounds. Draws come from a counter-based hash: the same values give the same
interval, on every machine.

N prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.hashing import mix

if TYPE_CHECKING:
    from dflash_pipeline.evaluation.acceptance import AcceptanceReport

NUM_RESAMPLES = 10_000
_DRAWS_AT_ONCE = 2**20
_SEED = 20602


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean over prompts. One value says nothing about others: it needs two."""
    if len(values) < 2 or not 0 < level < 1:
        raise ContractBroken(
            f"{len(values)} values at level {level}",
            where="bootstrap",
            fix="give values of two prompts or more, and a level between 0 and 1",
        )
    values_N = np.asarray(values, dtype=np.float64)
    means = np.concatenate([values_N[drawn].mean(axis=1) for drawn in _draws(values_N.size)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_interval(before: AcceptanceReport, after: AcceptanceReport) -> tuple[float, float]:
    """95 % interval of the mean over prompts of `after` less `before`, prompt by prompt: what they share falls out.

    Reports of other prompts are refused. Prompts without a whole round in either say nothing; with fewer than two
    others the interval is as wide as acceptance lengths can be apart.
    """
    if [p.prompt for p in before.prompts] != [p.prompt for p in after.prompts]:
        raise ContractBroken(
            f"reports of other prompts, {before.num_prompts} and {after.num_prompts}",
            where="acceptance",
            fix="measure both drafters on the same prompts, in the same order",
        )
    pairs = [(b.mean, a.mean) for b, a in zip(before.prompts, after.prompts, strict=True)]
    differences = [a - b for b, a in pairs if b is not None and a is not None]
    if len(differences) < 2:
        return (1.0 - before.block_size, after.block_size - 1.0)
    return mean_interval(differences)


def _draws(size: int) -> Iterator[NDArray[np.int64]]:
    """[.., N] indices at a time: N drawn with replacement for every resample."""
    index_N = np.arange(size)
    at_once = max(1, _DRAWS_AT_ONCE // size)
    for first in range(0, NUM_RESAMPLES, at_once):
        resample = np.arange(first, min(first + at_once, NUM_RESAMPLES))
        yield (mix(_SEED, resample[:, None], index_N) % np.uint64(size)).astype(np.int64)
