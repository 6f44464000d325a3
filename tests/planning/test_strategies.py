"""What tells one strategy from another; what they share is in test_manifest.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import CostModel, Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.batches import weigh
from dflash_pipeline.planning.diversity import length_distance, overall_efficiency, pair_repetition
from dflash_pipeline.planning.keys import Purpose, stream
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.planning.order import shuffled
from dflash_pipeline.planning.strategies import STRATEGIES, varlen
from tests.strategies import MAX_LENGTH, corpora, costs, met, must_meet, samples_of, spec_of

LENGTHS = [1 + i * 37 % 40 for i in range(400)]


def batches(manifest: EpochManifest) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(manifest.sample_ids, manifest.offsets[1:-1])]


def composition(manifest: EpochManifest) -> set[frozenset[int]]:
    return {frozenset(batch) for batch in batches(manifest)}


def test_every_strategy_has_its_function():
    assert set(STRATEGIES) == set(get_args(Strategy))


@must_meet("several batches")
@example(samples_of(LENGTHS), 0)
@given(corpora(min_length=1), st.integers(0, 5))
def test_sorted_batches_do_not_overlap_in_length(samples, epoch):
    manifest = build_epoch_manifest(samples, spec_of("sorted"), epoch=epoch)
    ranges = sorted((samples.num_tokens[b].min(), samples.num_tokens[b].max()) for b in batches(manifest))
    met("several batches", when=len(ranges) > 1)
    assert all(above[0] >= below[1] for below, above in pairwise(ranges))


def test_sorted_keeps_its_batches_and_shuffles_its_steps():
    samples, spec = samples_of(LENGTHS), spec_of("sorted", slots_per_step=4)
    first, second = (build_epoch_manifest(samples, spec, epoch=epoch) for epoch in (0, 1))
    assert first.digest() != second.digest()
    assert len(composition(first) & composition(second)) > 0.9 * len(composition(first))


def test_sorted_steps_hold_neighbours_but_for_the_last():
    # The last step lacks a batch: one is halved, and its half must not push later batches into other steps.
    samples, spec = samples_of([1 + i // 4 for i in range(160)]), spec_of("sorted", token_budget=200, slots_per_step=4)
    manifest = build_epoch_manifest(samples, spec, epoch=1)
    of_steps = [
        np.concatenate([samples.num_tokens[batch.sample_ids] for batch in manifest.step_batches(step)])
        for step in range(manifest.num_steps - 1)
    ]
    ranges = sorted((lengths.min(), lengths.max()) for lengths in of_steps)
    assert len(ranges) >= 3
    assert manifest.batch_sizes[-1].min() < manifest.batch_sizes[:-1].min()
    assert all(above[0] >= below[1] for below, above in pairwise(ranges))


@pytest.mark.parametrize("count", [11, 12, 3, 4])
def test_sorted_serves_neighbours_and_last_what_fills_no_step_from_anywhere(count):
    # One sample a micro-batch, so that they are in order of sample id.
    samples, spec = samples_of([10] * count), spec_of("sorted", token_budget=10, slots_per_step=4)
    weighed = weigh(STRATEGIES["sorted"].pack(samples, 10, spec, 0), samples, spec)
    full, rest = divmod(count, 4)
    places = set()
    for epoch in range(30):
        place = int(shuffled(np.arange(full + 1), seed=0, epoch=epoch, purpose=Purpose.SLOTS)[0])
        left = list(range(place * 4, place * 4 + rest))
        groups = np.array([m for m in range(count) if m not in left]).reshape(-1, 4)
        steps = shuffled(np.arange(full), seed=0, epoch=epoch, purpose=Purpose.STEPS)
        assert STRATEGIES["sorted"].arrange(weighed, spec, epoch).tolist() == [*groups[steps].ravel().tolist(), *left]
        places.add(place)
    assert places == set(range(full + 1))


def test_sorted_makes_ranks_wait_least():
    samples = samples_of([1 + i * 7919 % 2000 for i in range(20_001)])
    spec = {s: spec_of(s, token_budget=8000, slots_per_step=8, boundaries=(500, 1000, 2000)) for s in STRATEGIES}
    found = {
        s: overall_efficiency(build_epoch_manifest(samples, spec[s], epoch=0), samples, spec[s].cost, num_ranks=8)
        for s in STRATEGIES
    }
    assert found["sorted"] > 0.97 > found["bucket"] > found["shuffle"]


def test_shuffle_is_one_order_cut_where_the_budget_is_full():
    samples = samples_of(LENGTHS)
    manifest = build_epoch_manifest(samples, spec_of("shuffle", token_budget=200), epoch=0)
    assert manifest.sample_ids.tolist() != sorted(manifest.sample_ids.tolist())
    for before, after in pairwise(batches(manifest)):
        grown = [*before, after[0]]
        assert max(samples.num_tokens[grown]) * len(grown) > 200


@must_meet("several buckets")
@example(samples_of(LENGTHS), {10}, 0)
@given(corpora(min_length=1), st.sets(st.integers(1, MAX_LENGTH - 1), max_size=4), st.integers(0, 5))
def test_bucket_batches_stay_in_their_bucket(samples, inner, epoch):
    boundaries = (*sorted(inner), MAX_LENGTH)
    manifest = build_epoch_manifest(samples, spec_of("bucket", boundaries=boundaries), epoch=epoch)
    for batch in batches(manifest):
        buckets = set(np.searchsorted(boundaries, samples.num_tokens[batch]).tolist())
        assert len(buckets) == 1
    met("several buckets", when=len(set(np.searchsorted(boundaries, samples.num_tokens).tolist())) > 1)


def test_bucket_draws_other_companions_each_epoch_and_mixes_buckets_over_time():
    samples, spec = samples_of(LENGTHS), spec_of("bucket", boundaries=(10, 20, 40), token_budget=200)
    first, second = (build_epoch_manifest(samples, spec, epoch=epoch) for epoch in (0, 1))
    assert len(composition(first) & composition(second)) < 0.1 * len(composition(first))
    of_batch = [int(np.searchsorted((10, 20, 40), samples.num_tokens[b].max())) for b in batches(first)]
    changes = sum(a != b for a, b in pairwise(of_batch))
    assert changes > len(of_batch) / 4


def test_bucket_counts_differ_between_epochs():
    samples = samples_of([1 + i * i % 40 for i in range(300)])
    spec = spec_of("bucket", boundaries=(15, 40), token_budget=150)
    assert len({build_epoch_manifest(samples, spec, epoch=epoch).num_steps for epoch in range(8)}) > 1


@pytest.mark.parametrize("budget", [40, 100, 170])
def test_static_shapes_are_one_a_bucket_but_for_the_rest(budget):
    samples = samples_of(LENGTHS)
    spec = replace(spec_of("bucket", boundaries=(10, 20, 40), token_budget=budget), padding="boundary")
    manifest = build_epoch_manifest(samples, spec, epoch=0)
    for boundary in (10, 20, 40):
        sizes = manifest.batch_sizes[manifest.padded_length == boundary]
        assert sizes.max() == budget // boundary
        assert (sizes < sizes.max()).sum() <= 1


def padded_share(manifest: EpochManifest) -> float:
    return manifest.summary().padding_efficiency


def longer_corpus(count: int = 30_000) -> SampleLengths:
    """Log-normal lengths with a spike at the longest, as truncated conversations have."""
    lengths = np.exp(np.random.default_rng(1).normal(6.0, 0.7, count)).astype(np.int64)
    return samples_of(np.clip(lengths, 16, 2048).tolist())


LARGE = replace(
    spec_of("window", token_budget=8192, slots_per_step=8, boundaries=(256, 512, 1024, 2048)),
    cost=CostModel(quadratic_length=6144.0),
)


@pytest.fixture(scope="module")
def corpus() -> SampleLengths:
    return longer_corpus()


def test_window_pads_next_to_nothing_and_makes_no_rank_wait(corpus):
    manifest = build_epoch_manifest(corpus, LARGE, epoch=0)
    assert padded_share(manifest) > 0.99
    assert overall_efficiency(manifest, corpus, LARGE.cost, num_ranks=8) > 0.96


def test_window_draws_new_companions_and_steps_that_resemble_the_corpus(corpus):
    # Eight windows or more, so that few neighbours in length meet again.
    first, second = (build_epoch_manifest(corpus, LARGE, epoch=epoch) for epoch in (0, 1))
    ordered = build_epoch_manifest(corpus, replace(LARGE, strategy="sorted"), epoch=0)
    drawn = build_epoch_manifest(corpus, replace(LARGE, strategy="shuffle"), epoch=0)
    assert pair_repetition(first, second) < 0.4
    assert length_distance(first, corpus) < min(length_distance(drawn, corpus), length_distance(ordered, corpus) / 4)


def test_window_counts_the_cost_of_supervised_tokens(corpus):
    supervised = np.where(np.arange(corpus.num_tokens.size) % 2 == 0, corpus.num_tokens, 0)
    weighted = SampleLengths(snapshot="snapshot", num_tokens=corpus.num_tokens, num_supervised=supervised)
    spec = replace(LARGE, cost=CostModel(anchor_cost=3.0))
    blind = build_epoch_manifest(corpus, replace(LARGE, cost=CostModel()), epoch=0)
    seeing = build_epoch_manifest(weighted, spec, epoch=0)
    assert seeing.cost.max() <= 1.5 * spec.token_budget
    assert overall_efficiency(seeing, weighted, spec.cost, num_ranks=8) > overall_efficiency(
        blind, weighted, spec.cost, num_ranks=8
    )


def test_varlen_pads_nothing_and_levels_out_ranks(corpus):
    spec = replace(LARGE, strategy="varlen")
    manifest = build_epoch_manifest(corpus, spec, epoch=0)
    assert padded_share(manifest) == 1.0
    assert manifest.padded_tokens.max() <= spec.token_budget
    assert overall_efficiency(manifest, corpus, spec.cost, num_ranks=8) > 0.993


def test_varlen_steps_resemble_the_corpus_more_than_random_draws(corpus):
    spec = replace(LARGE, strategy="varlen")
    first, second = (build_epoch_manifest(corpus, spec, epoch=epoch) for epoch in (0, 1))
    per_step = round(corpus.num_tokens.size / first.num_steps)
    order = np.random.default_rng(0).permutation(corpus.num_tokens.size)
    whole = order.size // per_step * per_step
    assert pair_repetition(first, second) < 0.005
    assert length_distance(first, corpus) < 0.5 * distance_of_draws(corpus, order[:whole].reshape(-1, per_step))


def distance_of_draws(corpus: SampleLengths, steps: np.ndarray) -> float:
    """The same distance for steps given as samples, by the plain definition."""
    unique = np.unique(corpus.num_tokens)
    widths = np.diff(unique, append=unique[-1])

    def law(lengths: np.ndarray) -> np.ndarray:
        weights = np.bincount(np.searchsorted(unique, lengths), weights=lengths, minlength=unique.size)
        return np.cumsum(weights) / weights.sum()

    whole = law(corpus.num_tokens)
    return float(np.mean([(np.abs(law(corpus.num_tokens[step]) - whole) * widths).sum() for step in steps]))


@pytest.mark.parametrize("quadratic_length", [None, 50.0])
def test_varlen_leaves_for_the_next_step_what_has_no_room(quadratic_length):
    # Two of 60 do not fit 100 tokens together, so a step has room for one a slot, whatever its share of the cost.
    samples = samples_of([60] * 21)
    spec = replace(
        spec_of("varlen", token_budget=100, slots_per_step=4), cost=CostModel(quadratic_length=quadratic_length)
    )
    manifest = build_epoch_manifest(samples, spec, epoch=0)
    assert manifest.num_steps == 6
    assert manifest.filler.sum() == 3
    assert (manifest.batch_sizes == 1).all()


def test_varlen_with_linear_cost_has_as_few_steps_as_hold_the_tokens():
    spec = spec_of("varlen", token_budget=100, slots_per_step=4)
    manifest = build_epoch_manifest(samples_of([10] * 80), spec, epoch=0)
    assert manifest.num_tokens.tolist() == [[100] * 4] * 2


@must_meet("several micro-batches", "closed by the budget", "closed by the cost", "anchor cost")
@example([40] * 5 + [10] * 30, 100, 1, CostModel(quadratic_length=20.0, anchor_cost=0.5))
@example([30] * 7, 60, 1, CostModel(quadratic_length=30.0))
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(40, 200), st.sampled_from([1, 2]), costs)
def test_window_takes_as_many_samples_as_bring_the_cost_nearest_to_the_target(lengths, budget, each, cost):
    supervised = [x * (i % 3) // 2 for i, x in enumerate(lengths)]
    samples = samples_of(lengths, supervised)
    spec = replace(spec_of("window", token_budget=budget, slots_per_step=2), micro_batches_per_rank=each, cost=cost)
    packing = STRATEGIES["window"].pack(samples, 40, spec, 0)
    target = budget * (1.0 if each == 1 else 0.98)
    left = packing.sample_ids.tolist()
    met("several micro-batches", when=packing.sizes.size > 1)
    met("anchor cost", when=cost.anchor_cost > 0)
    for size, padded in zip(packing.sizes.tolist(), packing.padded_length.tolist(), strict=True):
        longest = lengths[left[0]]
        one = longest * (1 + (0.0 if cost.quadratic_length is None else longest / cost.quadratic_length))
        paid = np.cumsum([one + cost.anchor_cost * supervised[i] for i in left[: budget // longest]])
        off = np.abs(paid - target)
        met("closed by the budget", when=size == budget // longest)
        met("closed by the cost", when=size < min(budget // longest, len(left)))
        assert padded == longest == max(lengths[i] for i in left[:size])
        # Of two that are as near the larger; sums of fractions are compared to their last digits only.
        assert off[size - 1] <= off.min() + 1e-9 * target
        assert size == paid.size or off[size] > off[size - 1] - 1e-9 * target
        left = left[size:]
    assert not left


@pytest.mark.parametrize("cost", [CostModel(quadratic_length=32.0), CostModel(anchor_cost=1.0)])
def test_window_takes_the_larger_of_two_numbers_that_are_as_near(cost):
    # A sample of 32 costs 64: one is 32 below the target, two are 32 above, and three would fit the budget.
    spec = replace(spec_of("window", token_budget=96), cost=cost)
    packing = STRATEGIES["window"].pack(samples_of([32] * 6), 40, spec, 0)
    assert packing.sizes.tolist() == [2, 2, 2]


def levelled(costs: list[list[float]], lengths: list[list[int]], room: list[int]) -> list[list[int]]:
    """Two slots of samples 0, 1, 2 … with these costs and lengths, after swaps: the samples of each."""
    flat = np.array([x for slot in lengths for x in slot])
    prices = [c for slot in costs for c in slot]
    step, cost_of = np.arange(flat.size), np.array(prices)
    ends = np.array([len(costs[0]), flat.size, 0])
    load, left = np.array([sum(slot) for slot in costs]), np.array(room)
    varlen._level_out(step, cost_of, ends, load, left, flat)
    found = [step[: ends[0]].tolist(), step[ends[0] :].tolist()]
    before = [sum(slot) for slot in lengths]
    for s, slot in enumerate(found):
        # The books are kept: room shrinks by what a slot has grown, and loads are sums of its costs.
        assert left[s] == room[s] + before[s] - flat[slot].sum() >= 0
        assert load[s] == pytest.approx(sum(prices[i] for i in slot))
    return found


@pytest.mark.parametrize(
    ("costs", "lengths", "room", "expected"),
    [
        ([[6.0, 4.0], [4.0]], [[6, 4], [4]], [0, 2], [[2, 1], [0]]),
        ([[6.0, 4.0], [4.0]], [[6, 4], [4]], [0, 1], [[0, 1], [2]]),  # The dear one is too long for the cheap slot,
        ([[6.0, 4.0], [4.0]], [[3, 4], [5]], [2, 0], [[2, 1], [0]]),
        ([[6.0, 4.0], [4.0]], [[3, 4], [5]], [1, 0], [[0, 1], [2]]),  # or the cheap one for the dear slot.
        ([[4.5, 4.0, 1.5], [4.0]], [[1, 1, 1], [1]], [9, 9], [[3, 1, 2], [0]]),
        ([[4.25, 4.0, 1.75], [4.0]], [[1, 1, 1], [1]], [9, 9], [[0, 1, 2], [3]]),  # Too little is gained.
        ([[4.0], [6.0, 4.0]], [[4], [6, 4]], [2, 0], [[1], [0, 2]]),
    ],
)
def test_varlen_swaps_what_has_room_and_is_worth_it(costs, lengths, room, expected):
    assert levelled(costs, lengths, room) == expected


def test_varlen_runs_of_a_window_are_shuffled_among_themselves():
    base = stream(5, 2, Purpose.STEPS)
    dealt = varlen._stratified(np.arange(100, 123), 5, base, 40)
    runs = [dealt[low : low + 5].tolist() for low in range(0, 23, 5)]
    assert [sorted(run) for run in runs] == [list(range(low, min(low + 5, 123))) for low in range(100, 123, 5)]
    # Any place is possible, one's own too: over many runs each sample is at each place about as often.
    many = varlen._stratified(np.arange(20_000), 4, base, 0).reshape(-1, 4) % 4
    for place in range(4):
        assert np.bincount(many[:, place], minlength=4) == pytest.approx(1250, rel=0.12)


def test_varlen_orders_samples_by_falling_cost_and_equals_as_they_come():
    costs = np.array([3.0, 9.0, 1.0, 9.0, 3.0, 0.5])
    into, costs_into = np.empty(6, dtype=np.int64), np.empty(6)
    varlen._dearest_first(np.array([10, 11, 12, 13, 14, 15]), costs, varlen.LEVELS / 9.0, into, costs_into)
    assert into.tolist() == [11, 13, 10, 14, 12, 15]
    assert costs_into.tolist() == [9.0, 9.0, 3.0, 3.0, 1.0, 0.5]


def test_varlen_counts_the_cost_of_supervised_tokens():
    lengths, supervised = np.array([10, 20]), np.array([4, 0])
    assert varlen._cost(0, lengths, supervised, (1 / 50, 2.5)) == pytest.approx(10 * (1 + 10 / 50) + 2.5 * 4)
    # Of one length: only what is supervised tells samples apart, and only if it costs something.
    samples = samples_of([10] * 60, [i % 11 for i in range(60)])
    plain = spec_of("varlen", token_budget=50, slots_per_step=4)
    orders = [
        STRATEGIES["varlen"]
        .pack(samples, 50, replace(plain, cost=CostModel(anchor_cost=anchor)), 0)
        .sample_ids.tolist()
        for anchor in (0.0, 3.0)
    ]
    assert orders[0] != orders[1]
