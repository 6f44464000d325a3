"""Randomness as a function of values: a counter-based hash, the same on every machine and in every process.

`mix` chains the finaliser of SplitMix64 over its words. Orders and anchors are made from it, and resumed runs rely on
them: a change here is a new `ORDER_VERSION`, never a new expectation in a test.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64 - 1
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(*words: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """Hash of the words in their order; arrays broadcast. Integers count modulo 2^64."""
    hashed = np.zeros(1, dtype=np.uint64)
    for word in words:
        hashed = _finalise((hashed ^ _as_word(word)) + _STEP)
    return hashed


def counter_hash(seed: int, stream: int, index: NDArray[np.integer]) -> NDArray[np.uint64]:
    """One 64-bit key for every index: random to look at, a function of (seed, stream, index) alone."""
    return mix(seed, stream, index).reshape(np.shape(index))


def _as_word(word: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    if isinstance(word, int | np.integer):
        return np.asarray([int(word) & _WORD], dtype=np.uint64)
    return word.astype(np.uint64)


def _finalise(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))
