"""A law of lengths to measure batching with: three log-normals and a spike of documents cut at the context limit.

Lengths lie in 32 … 8192. It stands for a real fine-tuning set of 902,000 samples: its best six boundaries and the
efficiency of each strategy come out as they were seen there. Drawn by inverting the distribution function on PCG64,
so a number of samples and a seed always give the same lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_SAMPLES = 902_000
SEED = 20260
MIN_LENGTH = 32
MAX_LENGTH = 8192
SHARE_AT_LIMIT = 0.0319
BLOCK = 4_000_000
"""Samples drawn at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogNormal:
    """One part of the mixture; weights count relative to one another."""

    log_weight: float
    log_median: float
    log_deviation: float


PARTS = (
    LogNormal(log_weight=0.0000, log_median=6.4291, log_deviation=0.1157),
    LogNormal(log_weight=0.9474, log_median=7.0238, log_deviation=0.3245),
    LogNormal(log_weight=0.1574, log_median=7.7247, log_deviation=0.1674),
)


def reference_lengths(num_samples: int = NUM_SAMPLES, *, seed: int = SEED) -> npt.NDArray[np.int64]:
    """Lengths in random order."""
    return np.concatenate(list(reference_blocks(num_samples, seed=seed)))


def reference_blocks(num_samples: int, *, seed: int = SEED, block: int = BLOCK) -> Iterator[npt.NDArray[np.int64]]:
    """The lengths of `reference_lengths`, `block` at a time: the same numbers whatever the size of a block."""
    reached = np.cumsum(np.concatenate(_shares()))
    generator = np.random.Generator(np.random.PCG64(seed))
    for first in range(0, num_samples, block):
        drawn = generator.random(min(block, num_samples - first)) * reached[-1]
        cells = np.minimum(np.searchsorted(reached, drawn, side="right"), reached.size - 1)
        yield cells % MAX_LENGTH + 1


def _shares() -> list[npt.NDArray[np.float64]]:
    """Of each part, its share of samples at lengths 1 … MAX_LENGTH; then of the spike."""
    lengths = np.arange(1, MAX_LENGTH + 1, dtype=np.float64)
    total = sum(np.exp(part.log_weight) for part in PARTS)
    shares = []
    for part in PARTS:
        density = np.exp(-0.5 * ((np.log(lengths) - part.log_median) / part.log_deviation) ** 2) / lengths
        density[: MIN_LENGTH - 1] = 0.0
        weight = np.exp(part.log_weight) / total * (1 - SHARE_AT_LIMIT)
        shares.append(weight * density / density.sum())
    spike = np.zeros(MAX_LENGTH)
    spike[-1] = SHARE_AT_LIMIT
    return [*shares, spike]
