"""Random orders as functions of values: (seed, epoch, index) through a counter-based hash, no generator, no state."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dflash_pipeline.contracts.hashing import counter_hash
from dflash_pipeline.planning.packing import Ints


class Purpose(IntEnum):
    """What an order is for: each purpose draws from a stream of its own."""

    SAMPLES = 0
    MICRO_BATCHES = 1
    STEPS = 2


def shuffled(indices: Ints, *, seed: int, epoch: int, purpose: Purpose) -> Ints:
    """`indices` in the order of their hashes, ties (one in 2^64) by position."""
    keys = counter_hash(seed, (epoch << 8) | purpose, indices)
    return indices[np.argsort(keys, kind="stable")]
