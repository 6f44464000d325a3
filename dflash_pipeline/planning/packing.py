"""Cutting an order of samples into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash_pipeline.planning.compiled import compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packing:
    """Micro-batches: number m holds the `sizes[m]` sample ids from place `starts[m]` on, and no two share a place.

    `padded_length[m]` is the length of its rows: one row a sample, or, with documents end to end, a single one.
    """

    sample_ids: Ints
    starts: Ints
    sizes: Ints
    padded_length: Ints


def one_after_another(sample_ids: Ints, sizes: Ints, padded_length: Ints) -> Packing:
    """Micro-batches of these sizes in the order of `sample_ids`."""
    return Packing(sample_ids=sample_ids, starts=starts_of(sizes), sizes=sizes, padded_length=padded_length)


def usable_ids(lengths: Ints, longest: int) -> Ints:
    """Ids of the samples that hold 1 to `longest` tokens, ascending."""
    return np.flatnonzero((lengths > 0) & (lengths <= longest))


def pack_in_order(lengths: Ints, *, token_budget: int) -> Ints:
    """Sizes of the micro-batches that a greedy pass cuts `lengths` into, each padded to its own longest.

    A sample joins while (samples x longest) stays within the budget. Every length must fit the budget alone.
    """
    sizes = np.empty(lengths.size, dtype=np.int64)
    return sizes[: _cut(lengths, token_budget, sizes)].copy()


@compiled
def _cut(lengths: Ints, token_budget: int, sizes: Ints) -> int:
    batches = count = longest = 0
    for length in lengths:
        grown = max(longest, length)
        if count and grown * (count + 1) > token_budget:
            sizes[batches] = count
            batches += 1
            count, grown = 0, length
        count, longest = count + 1, grown
    if count:
        sizes[batches] = count
        batches += 1
    return batches


def pack_fixed(num_samples: int, *, per_batch: int) -> Ints:
    """Sizes of micro-batches of `per_batch` samples, the last one smaller when they do not divide."""
    full, rest = divmod(num_samples, per_batch)
    return np.array([per_batch] * full + [rest] * (rest > 0), dtype=np.int64)


def longest_of_each(lengths: Ints, sizes: Ints) -> Ints:
    """Longest length in each micro-batch."""
    return np.maximum.reduceat(lengths, starts_of(sizes))


def starts_of(sizes: Ints) -> Ints:
    """Place of each micro-batch's first sample."""
    starts: Ints = np.cumsum(sizes) - sizes
    return starts


@compiled
def gather(ids: Ints, starts: Ints, sizes: Ints) -> Ints:
    """The runs of `ids` that begin at `starts`, one after another."""
    taken = np.empty(sizes.sum(), dtype=np.int64)
    to = 0
    for m in range(sizes.size):
        for i in range(starts[m], starts[m] + sizes[m]):
            taken[to] = ids[i]
            to += 1
    return taken
