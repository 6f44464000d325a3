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
from dflash_pipeline.planning import boundaries as boundaries_module
from dflash_pipeline.planning.boundaries import (
    boundaries_by_count,
    candidate_grid,
    choose_boundaries,
    knee,
    optimise_boundaries,
    padding_efficiency,
)
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


def expected_longest(lengths: list[int], size: int) -> Fraction:
    """Of `size` members drawn at random: sum over x of the probability that one of them is longer than x."""
    together = min(size, len(lengths))
    return sum(
        (1 - Fraction(sum(y <= x for y in lengths), len(lengths)) ** together for x in range(max(lengths))), Fraction(0)
    )


def paid_with_batch_max(
    statistics: LengthStatistics, boundaries: tuple[int, ...], budget: int, cost: CostModel
) -> float:
    total = 0.0
    for low, high in zip((0, *boundaries), boundaries, strict=False):
        held = [
            x for x, n in zip(statistics.lengths, statistics.counts, strict=True) for _ in range(n) if low < x <= high
        ]
        if held:
            size = max(1, budget // high)
            expected = float(expected_longest(held, size))
            if cost.quadratic_length is not None:
                # The weight of the longest is x + x ** 2 / q; its square in the same way, by steps of 2 x + 1.
                shares = [Fraction(sum(y <= x for y in held), len(held)) for x in range(high)]
                together = min(size, len(held))
                squares = sum((2 * x + 1) * (1 - share**together) for x, share in enumerate(shares))
                expected += float(squares) / cost.quadratic_length
            total += len(held) * expected
    return total


@must_meet("a bucket of one micro-batch", "a boundary where no sample is", "quadratic cost")
@example(histogram_of({1: 1, 2: 9, 9: 1}), 12, 3, CostModel(quadratic_length=4.0))
@example(histogram_of({7: 3, 9: 9}), 9, 3, CostModel())
@given(
    st.dictionaries(st.integers(1, 9), st.integers(1, 9), min_size=1, max_size=5).map(histogram_of),
    st.integers(9, 60),
    st.integers(1, 3),
    costs,
)
def test_no_other_choice_costs_less_with_batch_max(statistics, budget, num_buckets, cost):
    # All whole numbers between: a boundary where no sample is can make micro-batches smaller.
    inner = range(statistics.lengths[0], statistics.max_length)
    found = boundaries_by_count(
        statistics, most=num_buckets, grid=1, cost=cost, objective="batch-max", token_budget=budget
    )
    assert [len(boundaries) for boundaries in found] == list(range(1, min(num_buckets, len(inner) + 1) + 1))
    for k, boundaries in enumerate(found):
        choices = [(*chosen, statistics.max_length) for chosen in combinations(inner, k)]
        best = min(paid_with_batch_max(statistics, choice, budget, cost) for choice in choices)
        assert boundaries in choices
        assert paid_with_batch_max(statistics, boundaries, budget, cost) == pytest.approx(best, rel=1e-6)
        met("a boundary where no sample is", when=not set(boundaries) <= set(statistics.lengths))
    met("a bucket of one micro-batch", when=sum(statistics.counts) * found[0][0] < budget)
    met("quadratic cost", when=cost.quadratic_length is not None)


def test_batch_max_takes_costs_that_no_machine_word_holds_whole():
    # A tenth is a fraction over 2^55: times 50 ** 2 that is beyond 64 bits.
    statistics, cost = histogram_of({20: 3, 30: 4, 50: 2}), CostModel(quadratic_length=0.1)
    found = optimise_boundaries(statistics, num_buckets=2, cost=cost, objective="batch-max", token_budget=120)
    paid = {first: paid_with_batch_max(statistics, (first, 50), 120, cost) for first in range(20, 50)}
    assert paid[found[0]] == pytest.approx(min(paid.values()), rel=1e-9)
    assert max(paid.values()) > 1.1 * min(paid.values())


@must_meet("a bucket without a sample", "a bucket of one micro-batch")
@example(histogram_of({7: 3, 9: 2}), {3}, 9)
@example(histogram_of({3: 1, 9: 1}), set(), 60)
@given(
    st.dictionaries(st.integers(1, 9), st.integers(1, 9), min_size=1, max_size=5).map(histogram_of),
    st.sets(st.integers(1, 8), max_size=3),
    st.integers(1, 60),
)
def test_padding_efficiency_with_a_budget_is_real_over_expected(statistics, inner, budget):
    boundaries = (*sorted(inner), 9)
    met("a bucket without a sample", when=statistics.lengths[0] > boundaries[0])
    met("a bucket of one micro-batch", when=sum(statistics.counts) * 9 < budget)
    expected = paid_with_batch_max(statistics, boundaries, budget, CostModel())
    found = padding_efficiency(statistics, boundaries, token_budget=budget)
    assert found == pytest.approx(statistics.num_tokens / expected, rel=1e-6)


@pytest.mark.parametrize(
    ("efficiencies", "expected"),
    [
        ([0.5], 1),
        ([0.5, 0.5, 0.5], 1),
        ([0.5, 0.4], 1),
        ([0.5, 0.9], 1),
        ([0.5, 0.9, 0.95, 1.0], 2),
        ([0.5, 0.6, 0.98, 1.0], 3),
        ([0.5, 0.9, 0.9, 0.7], 2),
        ([0.0, 0.25, 0.5], 1),  # A straight line has no knee; nor has one that hangs below it.
        ([0.2, 0.2, 0.6], 1),
        ([0.0, 0.5, 0.75, 0.75, 1.0], 2),  # Of equals the fewest.
    ],
)
def test_the_knee_lies_farthest_above_the_line_from_first_to_last(efficiencies, expected):
    assert knee(efficiencies) == expected


@pytest.mark.parametrize(("grid", "cost"), [(1, CostModel()), (3, CostModel(quadratic_length=20.0))])
@pytest.mark.parametrize(("objective", "budget"), [("boundary", None), ("boundary", 400), ("batch-max", 400)])
def test_auto_takes_the_knee_of_its_own_objective(objective, budget, grid, cost):
    statistics = histogram_of(dict(zip(range(10, 130, 10), (2, 8, 50, 50, 50, 1, 3, 1, 5, 50, 5, 5), strict=True)))
    rules = {"grid": grid, "cost": cost, "objective": objective, "token_budget": budget}
    found = boundaries_by_count(statistics, most=boundaries_module.MOST_AUTOMATIC, **rules)
    assert len(found) == (12 if objective == "boundary" else boundaries_module.MOST_AUTOMATIC)
    curves = [
        [padding_efficiency(statistics, boundaries, token_budget=expected) for boundaries in found]
        for expected in (None, 400)
    ]
    assert knee(curves[0]) != knee(curves[1])
    chosen = choose_boundaries(statistics, num_buckets="auto", **rules)
    assert chosen == found[knee(curves[objective == "batch-max"]) - 1]
    assert 1 < len(chosen) < len(found)
    assert choose_boundaries(statistics, num_buckets=5, **rules) == found[4]
    assert optimise_boundaries(statistics, num_buckets=5, **rules) == found[4]


def all_candidates(statistics: LengthStatistics, grid: int = 1) -> tuple[int, ...]:
    """Of `batch-max`: as many buckets as there are candidates use each of them."""
    budget = 2 * statistics.max_length
    return optimise_boundaries(statistics, num_buckets=10_000, grid=grid, objective="batch-max", token_budget=budget)


def test_candidates_of_batch_max_lie_on_a_grid():
    assert all_candidates(histogram_of({3: 1, 7: 1})) == (3, 4, 5, 6, 7)
    assert all_candidates(histogram_of({3: 1, 7: 1}), grid=2) == (4, 6, 8)
    assert all_candidates(histogram_of({4: 1, 8: 1}), grid=2) == (4, 6, 8)
    # Above `CANDIDATES` cells the step is as wide as needed, and the longest sample is still the last boundary.
    assert all_candidates(histogram_of({176: 1})) == (176,)
    assert all_candidates(histogram_of({170: 1, 176: 1})) == tuple(range(170, 177))
    assert all_candidates(histogram_of({170: 1, 177: 1})) == (170, 172, 174, 176, 177)
    assert all_candidates(histogram_of({171: 1, 353: 1})) == (*range(171, 352, 3), 353)


def test_a_grid_of_one_is_told_as_it_is_laid():
    statistics = histogram_of({171: 1, 353: 1})
    assert candidate_grid(statistics, 1, "batch-max") == 3
    assert candidate_grid(statistics, 1, "boundary") == 1
    assert candidate_grid(statistics, 2, "batch-max") == candidate_grid(statistics, 2, "boundary") == 2


def test_among_equal_choices_with_batch_max_the_smaller_split_is_taken():
    # Any boundary from 1 to 8 keeps the short ones among themselves, at the same cost.
    tied = histogram_of({1: 100, 9: 100})
    assert optimise_boundaries(tied, num_buckets=2, objective="batch-max", token_budget=9) == (1, 9)


def test_batch_max_needs_a_budget_that_holds_the_longest_sample():
    statistics = histogram_of({3: 1, 9: 1})
    assert optimise_boundaries(statistics, num_buckets=1, objective="batch-max", token_budget=9) == (9,)
    for budget in (None, 8):
        with pytest.raises(Refused) as refused:
            optimise_boundaries(statistics, num_buckets=1, objective="batch-max", token_budget=budget)
        assert str(refused.value) == (
            f"boundaries: a token budget of {budget or 'nothing'} for samples of up to 9 tokens; "
            "give the token budget of a micro-batch (--token-budget); it must hold the longest sample"
        )


def test_a_grid_too_fine_for_batch_max_is_refused(monkeypatch):
    monkeypatch.setattr(boundaries_module, "MOST_CANDIDATES", 10)
    assert all_candidates(histogram_of({1: 1, 20: 1}), grid=2) == tuple(range(2, 21, 2))
    with pytest.raises(Refused) as refused:
        all_candidates(histogram_of({1: 1, 21: 1}), grid=2)
    assert str(refused.value) == (
        "boundaries: a grid of 2 has 11 candidates up to 21; use a grid of at least 3 with batch-max, or 1 for any"
    )
