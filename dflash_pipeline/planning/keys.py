"""The random key of a sample inside compiled loops: the same numbers as `contracts.hashing.counter_hash`."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dflash_pipeline.contracts.hashing import mix
from dflash_pipeline.planning.compiled import compiled

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class Purpose(IntEnum):
    """What an order is for: each purpose draws from a stream of its own."""

    SAMPLES = 0
    MICRO_BATCHES = 1
    STEPS = 2
    SLOTS = 3


def stream(seed: int, epoch: int, purpose: Purpose) -> np.uint64:
    """What `key_of` needs of (seed, epoch, purpose)."""
    hashed: np.uint64 = mix(seed, (epoch << 8) | purpose)[0]
    return hashed


@compiled
def key_of(stream: np.uint64, index: int) -> np.uint64:
    """64 random bits for `index`: `counter_hash(seed, (epoch << 8) | purpose, index)`, one at a time."""
    state = (stream ^ np.uint64(index)) + _STEP
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))


@compiled
def share_of(key: np.uint64, parts: int) -> np.int64:
    """The key's top 32 bits as one of `parts` equal shares, from 0; `parts` is below 2^31."""
    return np.int64(((key >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32))
