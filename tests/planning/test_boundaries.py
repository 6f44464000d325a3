"""The boundaries are optimal: against every choice there is, not against another algorithm."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.boundaries import optimise_boundaries, padding_efficiency
from tests.strategies import costs, histogram_of, histograms, met, must_meet


def padded_cost(statistics: LengthStatistics, boundaries: tuple[int, ...], cost: CostModel) -> Fraction:
    """In fractions, so that equal costs compare equal."""
    total = Fraction(0)
    for length, count in zip(statistics.lengths, statistics.counts, strict=True):
        boundary = min(b for b in boundaries if b >= length)
        factor = 1 if cost.quadratic_length is None else 1 + boundary / Fraction(cost.quadratic_length)
        total += boundary * count * factor
    return total


def every_choice(statistics: LengthStatistics, num_buckets: int, grid: int) -> list[tuple[int, ...]]:
    candidates = sorted({-(-length // grid) * grid for length in statistics.lengths})
    *inner, last = candidates
    return [(*chosen, last) for k in range(num_buckets) for chosen in combinations(inner, k)]


@must_meet("several choices", "a grid that joins lengths", "quadratic cost")
@example(histogram_of({1: 2, 2: 1, 5: 1, 9: 3}), 2, 2, CostModel(quadratic_length=3.0))
@given(histograms, st.integers(1, 11), st.integers(1, 12), costs)
def test_no_other_choice_costs_less(statistics, num_buckets, grid, cost):
    found = optimise_boundaries(statistics, num_buckets=num_buckets, grid=grid, cost=cost)
    choices = every_choice(statistics, num_buckets, grid)
    best = min(padded_cost(statistics, choice, cost) for choice in choices)
    met("several choices", when=len(choices) > 1)
    met("a grid that joins lengths", when=len({-(-x // grid) for x in statistics.lengths}) < len(statistics.lengths))
    met("quadratic cost", when=cost.quadratic_length is not None)
    assert found in choices
    assert padded_cost(statistics, found, cost) == best


def least_cost(weights: list[int], counts: list[int], num_buckets: int) -> int:
    """By the recurrence as it is written, without a hull."""
    below = np.concatenate(([0], np.cumsum(counts))).tolist()
    best: list[float] = [0, *[math.inf] * len(weights)]
    for _ in range(num_buckets):
        best = [0] + [
            min(best[i] + weights[j] * (below[j + 1] - below[i]) for i in range(j + 1)) for j in range(len(weights))
        ]
    return int(best[-1])


def test_uneven_histograms_reach_the_least_cost():
    # Counts over five orders of magnitude: lines enter the hull and leave it again at either end.
    generator = np.random.default_rng(20)
    for _ in range(150):
        lengths = np.cumsum(generator.integers(1, 40, size=24) ** 2).tolist()
        counts = (10 ** generator.uniform(0, 5, size=24)).astype(int).tolist()
        statistics = histogram_of(dict(zip(lengths, counts, strict=True)))
        for num_buckets in (2, 3, 7):
            found = optimise_boundaries(statistics, num_buckets=num_buckets)
            assert padded_cost(statistics, found, CostModel()) == least_cost(lengths, counts, num_buckets)


@given(histograms, st.integers(1, 12), costs)
def test_more_buckets_never_cost_more(statistics, grid, cost):
    found = [optimise_boundaries(statistics, num_buckets=k, grid=grid, cost=cost) for k in range(1, 12)]
    paid = [padded_cost(statistics, boundaries, cost) for boundaries in found]
    assert paid == sorted(paid, reverse=True)
    candidates = {-(-length // grid) * grid for length in statistics.lengths}
    assert [len(boundaries) for boundaries in found] == [min(k, len(candidates)) for k in range(1, 12)]


def test_among_equal_choices_the_smaller_split_is_taken():
    tied = histogram_of({1: 1, 2: 1, 3: 1})
    assert padded_cost(tied, (1, 3), CostModel()) == padded_cost(tied, (2, 3), CostModel()) == 7
    assert optimise_boundaries(tied, num_buckets=2) == (1, 3)


@pytest.mark.parametrize("cost", [CostModel(), CostModel(quadratic_length=3e17)])
def test_numbers_beyond_the_reach_of_doubles_are_exact(cost):
    # Scaled so far that one sample more or less is lost in a double; the choice must not change with it.
    big = 2**70
    statistics = histogram_of({big + 1: 1, big + 2: 1, big + 3: 2, big + 4: 1})
    best = min(padded_cost(statistics, choice, cost) for choice in every_choice(statistics, 2, 1))
    found = optimise_boundaries(statistics, num_buckets=2, cost=cost)
    assert padded_cost(statistics, found, cost) == best
    near = [choice for choice in every_choice(statistics, 2, 1) if choice != found]
    assert all(float(padded_cost(statistics, choice, cost)) == float(best) for choice in near[1:])


@given(histograms, st.integers(1, 5))
def test_a_common_factor_of_the_counts_changes_nothing(statistics, num_buckets):
    scaled = histogram_of({x: 2**65 * n for x, n in zip(statistics.lengths, statistics.counts, strict=True)})
    assert optimise_boundaries(scaled, num_buckets=num_buckets) == optimise_boundaries(
        statistics, num_buckets=num_buckets
    )


def test_quadratic_cost_moves_boundaries_up():
    uniform = histogram_of(dict.fromkeys(range(1, 101), 1))
    assert optimise_boundaries(uniform, num_buckets=2) == (50, 100)
    assert optimise_boundaries(uniform, num_buckets=2, cost=CostModel(quadratic_length=1.0)) > (55, 100)


def test_one_length_is_one_bucket():
    assert optimise_boundaries(histogram_of({512: 40}), num_buckets=8) == (512,)
    assert optimise_boundaries(histogram_of({3: 1, 9: 1}), num_buckets=1) == (9,)
    assert optimise_boundaries(histogram_of({512: 40}), num_buckets=8, grid=100) == (600,)


@pytest.mark.parametrize(("num_buckets", "grid"), [(0, 1), (1, 0), (-1, 1)])
def test_no_bucket_and_no_grid_are_refused(num_buckets, grid):
    with pytest.raises(Refused, match=f"boundaries: {num_buckets} buckets on a grid of {grid}; use at least 1"):
        optimise_boundaries(histogram_of({1: 1}), num_buckets=num_buckets, grid=grid)


def test_a_smooth_density_meets_the_condition_of_optimality():
    # At the optimum f(b_k) * (b_{k+1} - b_k) is the mass of bucket k: moving b_k costs there what it saves here.
    lengths = np.arange(1, 2001)
    counts = np.round(1e6 * np.exp(-(((np.log(lengths) - 6) / 0.5) ** 2)) / lengths).astype(int) + 1
    statistics = histogram_of(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
    boundaries = optimise_boundaries(statistics, num_buckets=6)
    for below, here, above in zip((0, *boundaries), boundaries, boundaries[1:], strict=False):
        mass = counts[below:here].sum()
        assert counts[here - 1] * (above - here) == pytest.approx(mass, rel=0.03)


@given(histograms, st.integers(1, 5), st.integers(1, 9))
def test_padding_efficiency_is_real_over_padded(statistics, num_buckets, grid):
    boundaries = optimise_boundaries(statistics, num_buckets=num_buckets, grid=grid)
    padded = padded_cost(statistics, boundaries, CostModel())
    assert padding_efficiency(statistics, boundaries) == float(statistics.num_tokens / padded)


def test_padding_efficiency_needs_a_boundary_for_every_sample():
    with pytest.raises(Refused) as refused:
        padding_efficiency(histogram_of({3: 1, 9: 1}), (2, 4, 8))
    assert str(refused.value) == (
        "boundaries of snapshot snapshot: a sample of 9 tokens above the last boundary 8; "
        "optimise the boundaries for this snapshot"
    )
    assert padding_efficiency(histogram_of({2: 3, 3: 2, 8: 1}), (2, 4, 8)) == 20 / 22


def test_thousands_of_lengths_take_well_below_a_second():
    statistics = histogram_of({length: 1 + length % 7 for length in range(1, 3671)})
    began = time.process_time()
    boundaries = optimise_boundaries(statistics, num_buckets=32, cost=CostModel(quadratic_length=24_576.0))
    assert time.process_time() - began < 1
    assert len(boundaries) == 32
