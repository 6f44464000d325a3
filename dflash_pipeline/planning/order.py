"""Random orders as functions of values: (seed, epoch, index) through a counter-based hash, no generator, no state."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.keys import Purpose, key_of, share_of, stream
from dflash_pipeline.planning.packing import Ints
from dflash_pipeline.planning.radix import sort_with

SAMPLES_A_PART = 4096
"""Keys sorted together: they and their indices stay in the second-level cache."""
BITS = 64


def shuffled(indices: Ints, *, seed: int, epoch: int, purpose: Purpose) -> Ints:
    """`indices` in the order of their hashes, ties (one in 2^64) by position."""
    return _by_key(indices, stream(seed, epoch, purpose), max(1, indices.size // SAMPLES_A_PART))


@compiled
def _by_key(indices: Ints, base: np.uint64, num_parts: int) -> Ints:
    # Parts by the key's top bits, then each part by its whole key: two passes on 22 bits leave next to nothing to move.
    starts = np.zeros(num_parts + 1, dtype=np.int64)
    for i in range(indices.size):
        starts[share_of(key_of(base, indices[i]), num_parts) + 1] += 1
    starts = np.cumsum(starts)
    cursor = starts[:-1].copy()
    order = np.empty_like(indices)
    for i in range(indices.size):
        part = share_of(key_of(base, indices[i]), num_parts)
        order[cursor[part]] = indices[i]
        cursor[part] += 1
    for k in range(num_parts):
        _sort_part(order[starts[k] : starts[k + 1]], base, num_parts)
    return order


@compiled
def _sort_part(part: Ints, base: np.uint64, num_parts: int) -> None:
    keys = np.empty(part.size, dtype=np.uint64)
    for i in range(part.size):
        # What the part leaves open of the key's top 32 bits, down to 22 bits.
        keys[i] = (
            (key_of(base, part[i]) >> np.uint64(32)) * np.uint64(num_parts) & np.uint64(0xFFFFFFFF)
        ) >> np.uint64(10)
    sort_with(keys, part, 22)
    for i in range(1, part.size):
        index, key, to = part[i], key_of(base, part[i]), i
        while to > 0 and key_of(base, part[to - 1]) > key:
            part[to] = part[to - 1]
            to -= 1
        part[to] = index
