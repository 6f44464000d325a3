"""Sorting by whole-number keys, stable, in passes of 11 bits: linear in the number of values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.packing import Ints

Keys = npt.NDArray[np.uint64]

DIGIT = 11
"""Bits of one pass: 2,048 counters fit the first-level cache beside the streams they lead to."""


def argsort(keys: Keys, *, bits: int) -> Ints:
    """Stable order of keys below 2^bits."""
    order = np.arange(keys.size)
    sort_with(keys.copy(), order, bits)
    return order


@compiled
def sort_with(keys: Keys, values: Ints, bits: int) -> None:
    """Sort `keys` (below 2^bits) in place, stably, and carry `values` along."""
    n = keys.size
    passes = (bits + DIGIT - 1) // DIGIT
    digit = (bits + passes - 1) // passes if passes else 1
    mask = np.uint64((1 << digit) - 1)
    places = np.empty(1 << digit, dtype=np.int64)
    other_keys, other_values = np.empty_like(keys), np.empty_like(values)
    source_keys, source_values, target_keys, target_values = keys, values, other_keys, other_values
    for p in range(passes):
        shift = np.uint64(p * digit)
        places[:] = 0
        for i in range(n):
            places[np.int64((source_keys[i] >> shift) & mask)] += 1
        at = 0
        for d in range(places.size):
            count = places[d]
            places[d] = at
            at += count
        for i in range(n):
            place = np.int64((source_keys[i] >> shift) & mask)
            to = places[place]
            places[place] = to + 1
            target_keys[to] = source_keys[i]
            target_values[to] = source_values[i]
        source_keys, source_values, target_keys, target_values = target_keys, target_values, source_keys, source_values
    if passes % 2:
        keys[:] = other_keys
        values[:] = other_values
