"""Orders and anchors are functions of values; if these values move, resumed runs read other samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.hashing import counter_hash, mix

words = st.integers(0, 2**64 - 1)


def plain(*values: int) -> int:
    """The same hash in Python's own integers."""
    word, hashed = 2**64 - 1, 0
    for value in values:
        state = ((hashed ^ value) + 0x9E3779B97F4A7C15) & word
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & word
        state = (state ^ state >> 27) * 0x94D049BB133111EB & word
        hashed = state ^ state >> 31
    return hashed


def test_values_are_pinned():
    # The first is the published first output of SplitMix64 for seed 0.
    assert [int(mix(0)[0]), int(mix(1)[0]), int(mix(1, 2, 3)[0])] == [
        0xE220A8397B1DCDAF,
        0x910A2DEC89025CC1,
        0xD0734750FDE362B3,
    ]
    assert counter_hash(7, 1, np.arange(3)).tolist() == [8075172986249684972, 14574897457539200646, 1650069959653123811]


@given(st.lists(words, min_size=1, max_size=4))
def test_vectorised_equals_plain_integers(values):
    assert int(mix(*values)[0]) == plain(*values)


@given(words, words, st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20))
def test_an_array_is_hashed_element_by_element(seed, stream, index):
    keys = counter_hash(seed, stream, np.asarray(index))
    assert keys.dtype == np.uint64
    assert keys.tolist() == [plain(seed, stream, i % 2**64) for i in index]


@pytest.mark.parametrize("changed", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_every_word_counts_and_so_does_their_order(changed):
    assert mix(*changed) != mix(0, 0, 0)
    assert len({int(mix(1, 0, 0)[0]), int(mix(0, 1, 0)[0]), int(mix(0, 0, 1)[0])}) == 3


def test_keys_are_spread_evenly():
    keys = counter_hash(0, 0, np.arange(20_000))
    bits = np.unpackbits(keys.view(np.uint8)).mean()
    assert np.unique(keys).size == 20_000
    assert bits == pytest.approx(0.5, abs=0.005)


def test_shape_is_that_of_the_index():
    assert counter_hash(0, 0, np.asarray(5)).shape == ()
    assert counter_hash(0, 0, np.zeros((0,), np.int64)).shape == (0,)
    assert counter_hash(0, 0, np.zeros((2, 3), np.int64)).shape == (2, 3)
