"""The radix sort against numpy's stable one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.planning.radix import argsort


@given(st.integers(1, 64), st.data())
def test_keys_come_out_in_order_and_equals_as_they_were(bits, data):
    keys = np.array(data.draw(st.lists(st.integers(0, min(2**bits, 2**64) - 1), max_size=60)), dtype=np.uint64)
    before = keys.copy()
    assert argsort(keys, bits=bits).tolist() == np.argsort(keys, kind="stable").tolist()
    assert keys.tolist() == before.tolist()


@pytest.mark.parametrize("bits", [0, 1, 11, 12, 22, 23, 64])
def test_many_ties_stay_in_order(bits):
    keys = (np.arange(10_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits if bits else 63)
    keys = keys if bits else np.zeros_like(keys)
    assert argsort(keys, bits=bits).tolist() == np.argsort(keys, kind="stable").tolist()
