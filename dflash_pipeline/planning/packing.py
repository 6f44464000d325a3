"""Cutting an order of samples into micro-batches under a token budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packing:
    """Micro-batches as served: number m holds the next `sizes[m]` of `sample_ids`, padded to `padded_length[m]`."""

    sample_ids: Ints
    sizes: Ints
    padded_length: Ints


def pack_in_order(lengths: Ints, *, token_budget: int) -> Ints:
    """Sizes of the micro-batches that a greedy pass cuts `lengths` into, each padded to its own longest.

    A sample joins while (samples x longest) stays within the budget. Every length must fit the budget alone.
    """
    sizes: list[int] = []
    count = longest = 0
    for length in lengths.tolist():
        grown = max(longest, length)
        if count and grown * (count + 1) > token_budget:
            sizes.append(count)
            count, grown = 0, length
        count, longest = count + 1, grown
    if count:
        sizes.append(count)
    return np.array(sizes, dtype=np.int64)


def pack_fixed(num_samples: int, *, per_batch: int) -> Ints:
    """Sizes of micro-batches of `per_batch` samples, the last one smaller when they do not divide."""
    full, rest = divmod(num_samples, per_batch)
    return np.array([per_batch] * full + [rest] * (rest > 0), dtype=np.int64)


def longest_of_each(lengths: Ints, sizes: Ints) -> Ints:
    """Longest length in each micro-batch."""
    return np.maximum.reduceat(lengths, np.concatenate(([0], np.cumsum(sizes)[:-1])))


def reorder(packing: Packing, order: Ints) -> Packing:
    """The same micro-batches in another order."""
    starts = np.cumsum(packing.sizes) - packing.sizes
    sizes = packing.sizes[order]
    return Packing(
        sample_ids=packing.sample_ids[places(starts[order], sizes)],
        sizes=sizes,
        padded_length=packing.padded_length[order],
    )


def places(starts: Ints, sizes: Ints) -> Ints:
    """Places of the samples of micro-batches that begin at `starts`, one micro-batch after another."""
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found: Ints = np.repeat(starts, sizes) + within
    return found
