"""Steps hold one micro-batch of each stratum of lengths, of like cost; ranks have sums alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.hashing import counter_hash
from dflash_pipeline.planning import strata
from dflash_pipeline.planning.keys import Purpose
from dflash_pipeline.planning.strata import balanced_slots, stratified
from tests.strategies import spec_of


def steps_of(lengths: list[int], costs: list[float], slots: int, epoch: int = 0) -> list[list[int]]:
    order = stratified(np.array(lengths), np.array(costs), spec_of("window", slots_per_step=slots), epoch)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    full = len(lengths) // slots * slots
    return order[:full].reshape(-1, slots).tolist()


@example(list(range(1, 21)), 5, 0)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 3))
def test_each_step_takes_one_of_each_stratum(lengths, slots, epoch):
    steps = steps_of(lengths, [float(x) for x in lengths], slots, epoch)
    ranked = np.sort(np.array([sorted(lengths[m] for m in step) for step in steps]).reshape(-1, slots), axis=0)
    # Column by column the strata do not overlap: the longest of one is at most the shortest of the next.
    assert all(ranked[-1, s] <= ranked[0, s + 1] for s in range(slots - 1) if len(steps))


def test_inside_a_stratum_costs_of_one_rank_meet():
    # Two strata of lengths; in each the costs 1, 2, 3, in another order.
    steps = steps_of([10, 10, 10, 20, 20, 20], [1.0, 2.0, 3.0, 3.0, 1.0, 2.0], 2)
    assert sorted(sorted(step) for step in steps) == [[0, 4], [1, 5], [2, 3]]


def test_what_fills_no_step_is_taken_from_all_lengths():
    lengths = list(range(1, 102))
    order = stratified(np.array(lengths), np.ones(101), spec_of("window", slots_per_step=11), 0)
    assert [lengths[m] for m in order[99:].tolist()] == [26, 76]


def test_ranks_have_sums_alike_and_none_the_dearest_each_time():
    spec = replace(spec_of("window", slots_per_step=8), micro_batches_per_rank=2)
    costs = np.tile(np.array([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), 100)
    table = balanced_slots(np.arange(800).reshape(100, 8), costs, spec, epoch=0)
    assert sorted(table.ravel().tolist()) == list(range(800))
    # Rank r runs slots r and r + 4.
    sums = costs[table].reshape(100, 2, 4).sum(axis=1)
    assert (sums == 9.0).all()
    dearest = costs[table].reshape(100, 2, 4)[:, 0].argmax(axis=1)
    assert np.bincount(dearest, minlength=4).min() > 10


def test_costs_are_told_apart_finely():
    # Two strata of lengths, costs a millionth of the dearest apart.
    costs = [1.0 + k * 1e-6 for k in (0, 1, 2, 3)] + [1.0 + k * 1e-6 for k in (3, 1, 0, 2)]
    steps = steps_of([10] * 4 + [20] * 4, costs, 2)
    assert sorted(sorted(step) for step in steps) == [[0, 6], [1, 5], [2, 7], [3, 4]]


@pytest.mark.parametrize(("slots", "each"), [(2, 1), (8, 2), (12, 3), (20, 4), (20, 5), (64, 2)])
@pytest.mark.parametrize("epoch", [0, 3])
def test_slots_are_dealt_back_and_forth_and_turned(slots, each, epoch):
    num_steps, ranks = 30, slots // each
    spec = replace(spec_of("window", slots_per_step=slots, seed=5), micro_batches_per_rank=each)
    table = np.arange(num_steps * slots).reshape(num_steps, slots)
    costs = np.array([float(1 + i * 7919 % 13) for i in range(table.size)])
    turns = counter_hash(5, (epoch << 8) | Purpose.SLOTS, np.arange(num_steps)) % np.uint64(ranks)
    expected = []
    for row, turn in zip(table.tolist(), turns.tolist(), strict=True):
        dearest_first = sorted(row, key=lambda m: -costs[m])  # Equals as they come.
        for k in range(each):
            dealt = dearest_first[k * ranks : (k + 1) * ranks]
            dealt = dealt[::-1] if k % 2 else dealt
            expected += [dealt[(rank + turn) % ranks] for rank in range(ranks)]
    assert balanced_slots(table, costs, spec, epoch).ravel().tolist() == expected


def test_no_full_step_is_all_tail_in_order_of_length():
    order = stratified(np.array([3, 1, 2]), np.ones(3), spec_of("window", slots_per_step=4), 0)
    assert order.tolist() == [1, 2, 0]


@pytest.mark.parametrize("slots", [2, 3, 5, 9])
def test_strata_keep_apart_where_all_costs_are_equal(slots):
    lengths = list(range(1, 4 * slots + 1))
    for step in steps_of(lengths, [1.0] * len(lengths), slots):
        assert sorted((lengths[m] - 1) // 4 for m in step) == list(range(slots))


@pytest.mark.parametrize("epoch", [0, 1, 300])
def test_ties_are_drawn_anew_each_epoch(epoch):
    keys = counter_hash(5, (epoch << 8) | Purpose.MICRO_BATCHES, np.arange(100))
    assert strata._ties(100, spec_of(seed=5), epoch).tolist() == (keys >> np.uint64(54)).tolist()
