"""The time left: nothing before there is a pace, an interval that holds the middle, narrows, and ends at nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.training.time_left import MOST_BLOCKS, NOTHING, UNKNOWN, Pace

steps = st.lists(st.tuples(st.floats(0.01, 1e6), st.floats(1e-4, 1e5)), min_size=3, max_size=400)


def told(series) -> Pace:
    pace = Pace()
    for cost, seconds in series:
        pace.add(cost=cost, seconds=seconds)
    return pace


@given(steps, st.floats(0, 1e9))
def test_the_middle_lies_in_its_interval_and_nothing_is_below_nothing(series, cost):
    left = told(series).left(cost)
    assert 0 <= left.low <= left.mid <= left.high
    assert math.isfinite(left.high)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_it_is_not_known_before_the_third_step_of_an_attempt(count):
    """The first warms up; of one there is no spread. So it is right after a resume, too."""
    assert told([(1.0, 1.0)] * count).left(5.0) == UNKNOWN
    assert told([(1.0, 1.0)] * 3).left(5.0).mid == 5.0


def test_at_the_end_nothing_is_left_whatever_is_known():
    assert Pace().left(0.0) == told([(1.0, 1.0)] * 9).left(0.0) == NOTHING


@given(st.floats(0.01, 1e3), st.floats(1e-3, 1e3), st.integers(3, 400))
def test_an_even_pace_leaves_no_doubt(cost, seconds, count):
    left = told([(cost, seconds)] * count).left(10 * cost)
    assert left.mid == pytest.approx(10 * seconds)
    assert (left.low, left.high) == (pytest.approx(left.mid, rel=1e-4), pytest.approx(left.mid, rel=1e-4))


def test_it_goes_by_cost_and_not_by_steps():
    """Short steps first: by steps, the long ones to come would be underrated."""
    series = [(1.0, 0.1)] * 50
    assert told(series).left(1000.0).mid == pytest.approx(100.0)


def test_the_first_step_warms_up_and_does_not_count():
    assert told([(1.0, 500.0), *[(1.0, 2.0)] * 10]).left(10.0).mid == pytest.approx(20.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_narrows_and_holds_what_was_then_needed(seed):
    """Seconds a unit of cost that scatter by 30 %, in a run of 2,000 steps."""
    random = np.random.default_rng(seed)
    costs = random.uniform(0.5, 1.5, 2000)
    seconds = costs * random.gamma(11.0, 1 / 11.0, 2000)
    pace, widths, held = Pace(), [], []
    asked = (20, 100, 500, 1000, 1500, 1900)
    for done, (cost, took) in enumerate(zip(costs, seconds, strict=True), start=1):
        pace.add(cost=cost, seconds=took)
        if done in asked:
            left = pace.left(float(costs[done:].sum()))
            widths.append(left.high - left.low)
            held.append(left.low <= seconds[done:].sum() <= left.high)
    assert all(later < earlier for earlier, later in itertools.pairwise(widths))
    assert sum(held) >= len(asked) - 1


def test_a_change_of_pace_is_within_the_interval_soon():
    pace = told([(1.0, 1.0)] * 400)
    for _ in range(150):
        pace.add(cost=1.0, seconds=3.0)
    left = pace.left(100.0)
    assert left.high >= 300.0
    assert left.low < 200.0


def test_memory_is_bounded_and_nothing_is_forgotten():
    pace = Pace()
    for number in range(10_000):
        pace.add(cost=1.0, seconds=1.0 if number % 2 else 3.0)
    assert len(pace._blocks) < MOST_BLOCKS
    assert pace.left(100.0).mid == pytest.approx(200.0, rel=1e-2)
