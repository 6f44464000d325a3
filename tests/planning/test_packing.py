"""Greedy cuts: within the budget, and never closed while the next sample still fits."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.planning.packing import (
    gather,
    pack_fixed,
    pack_in_order,
    usable_ids,
)
from tests.strategies import met, must_meet

lengths_lists = st.lists(st.integers(1, 30), min_size=1, max_size=40)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@must_meet("closed by the budget")
@example([30, 30], 30)
@given(lengths_lists, st.integers(30, 120))
def test_micro_batches_are_full_and_within_the_budget(lengths, budget):
    sizes = pack_in_order(ints(*lengths), token_budget=budget).tolist()
    assert sum(sizes) == len(lengths)
    start = 0
    for size in sizes:
        batch, following = lengths[start : start + size], lengths[start : start + size + 1]
        assert max(batch) * size <= budget
        if len(following) > size:
            met("closed by the budget")
            assert max(following) * (size + 1) > budget
        start += size


def test_the_next_longest_sample_is_what_closes_a_micro_batch():
    assert pack_in_order(ints(10, 10, 10, 100, 100), token_budget=150).tolist() == [3, 1, 1]
    assert pack_in_order(ints(100, 10, 10), token_budget=300).tolist() == [3]
    assert pack_in_order(ints(100, 10, 10), token_budget=299).tolist() == [2, 1]
    # After a cut the longest is forgotten.
    assert pack_in_order(ints(100, 1, 1, 1), token_budget=100).tolist() == [1, 3]


def test_nothing_to_pack_is_no_micro_batch():
    assert pack_in_order(ints(), token_budget=10).tolist() == []
    assert pack_fixed(0, per_batch=3).tolist() == []
    assert pack_fixed(0, per_batch=3).dtype == np.int64


@given(st.integers(0, 50), st.integers(1, 9))
def test_fixed_sizes_leave_at_most_one_smaller_batch(num_samples, per_batch):
    sizes = pack_fixed(num_samples, per_batch=per_batch).tolist()
    assert sum(sizes) == num_samples
    assert sizes[:-1] == [per_batch] * (len(sizes) - 1)
    assert all(0 < size <= per_batch for size in sizes)


def test_runs_are_gathered_from_each_start():
    assert gather(ints(*range(100, 120)), ints(5, 0, 9), ints(2, 3, 1)).tolist() == [105, 106, 100, 101, 102, 109]
    assert gather(ints(7), ints(), ints()).tolist() == []


def test_usable_samples_have_a_token_and_fit():
    assert usable_ids(ints(0, 1, 9, 10, 11, 10), 10).tolist() == [1, 2, 3, 5]
