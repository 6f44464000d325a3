"""The figures of an epoch, against plain loops over its definition."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dflash_pipeline.planning.diversity as diversity
from dflash_pipeline.contracts.batching import BatchingSpec, CostModel
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.diversity import (
    batch_costs,
    length_distance,
    overall_efficiency,
    pair_repetition,
    rank_balance,
)
from dflash_pipeline.planning.manifest import build_epoch_manifest
from tests.strategies import corpora, costs, met, must_meet, samples_of, spec_of, specs, with_corners


def epochs(samples: SampleLengths, spec: BatchingSpec) -> tuple[EpochManifest, EpochManifest]:
    try:
        return build_epoch_manifest(samples, spec, epoch=0), build_epoch_manifest(samples, spec, epoch=1)
    except Refused:
        assume(False)
        raise


def wasserstein(here: list[int], everywhere: list[int]) -> float:
    """Area between two token-weighted distribution functions, one token at a time."""
    area = 0.0
    for x in range(max(everywhere)):
        shares = [sum(v for v in values if v <= x) / sum(values) for values in (here, everywhere)]
        area += abs(shares[0] - shares[1])
    return area


@must_meet("fillers", "several steps", "dropped")
@with_corners(200)
@given(corpora(), specs(), st.sampled_from([1, 200, 2**22]))
def test_length_distance_is_the_mean_over_steps(samples, spec, cells):
    manifest, _ = epochs(samples, spec)
    met("fillers", when=bool(manifest.filler.any()))
    met("several steps", when=manifest.num_steps > 1)
    met("dropped", when=manifest.dropped.size > 0)
    lengths = samples.num_tokens.tolist()
    of_steps = [
        [lengths[i] for batch in manifest.step_batches(step) if not batch.filler for i in batch.sample_ids]
        for step in range(manifest.num_steps)
    ]
    everywhere = [length for step in of_steps for length in step]
    expected = np.mean([wasserstein(step, everywhere) for step in of_steps])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diversity, "CELLS_AT_ONCE", cells)  # Tables of one step, of a few, of all.
        assert length_distance(manifest, samples) == pytest.approx(expected, abs=1e-9)


@must_meet("fillers", "accumulation")
@with_corners(CostModel(quadratic_length=7.0))
@given(corpora(), specs(), costs)
def test_overall_efficiency_is_needed_over_paid(samples, spec, cost):
    manifest, _ = epochs(samples, spec)
    ranks = spec.slots_per_step // spec.micro_batches_per_rank
    met("fillers", when=bool(manifest.filler.any()))
    met("accumulation", when=spec.micro_batches_per_rank > 1 < ranks)

    def price(length: int, count: int, supervised: int) -> float:
        factor = 1 if cost.quadratic_length is None else 1 + length / cost.quadratic_length
        return length * count * factor + cost.anchor_cost * supervised

    paid = 0.0
    for step in range(manifest.num_steps):
        of_rank = [0.0] * ranks
        for batch in manifest.step_batches(step):
            rows = samples.num_tokens[batch.sample_ids].tolist()
            if batch.layout == "rows":
                rows = [batch.padded_length] * len(rows)
            of_rank[batch.slot % ranks] += sum(price(row, 1, 0) for row in rows) + price(0, 0, batch.supervised_tokens)
        paid += ranks * max(of_rank)
    needed = sum(
        price(int(samples.num_tokens[i]), 1, int(samples.num_supervised[i]))
        for i in range(samples.num_tokens.size)
        if i not in manifest.dropped
    )
    found = overall_efficiency(manifest, samples, cost, num_ranks=ranks)
    assert found == pytest.approx(needed / paid)
    assert 0 < found <= 1 + 1e-12


def pairs_of(manifest: EpochManifest) -> set[tuple[int, int]]:
    return {
        pair
        for step in range(manifest.num_steps)
        for batch in manifest.step_batches(step)
        if not batch.filler
        for pair in combinations(sorted(batch.sample_ids.tolist()), 2)
    }


@must_meet("some pairs meet again", "no pair at all")
@with_corners()
@given(corpora(), specs())
def test_pair_repetition_counts_pairs_that_meet_again(samples, spec):
    before, after = epochs(samples, spec)
    pairs = pairs_of(before)
    again = len(pairs & pairs_of(after))
    met("some pairs meet again", when=again > 0)
    met("no pair at all", when=not pairs)
    assert pair_repetition(before, after) == (again / len(pairs) if pairs else 0.0)


@pytest.mark.parametrize(("budget_before", "budget"), [(300, 300), (20, 300), (300, 20)])
def test_pairs_are_counted_where_each_epoch_leaves_out_others(budget_before, budget):
    samples = samples_of([10] * 70)
    spec = replace(spec_of("shuffle", slots_per_step=2, boundaries=(10,)), tail="drop")
    before = build_epoch_manifest(samples, replace(spec, token_budget=budget_before), epoch=0)
    after = build_epoch_manifest(samples, replace(spec, token_budget=budget), epoch=1)
    again = len(pairs_of(before) & pairs_of(after))
    assert again > 0
    assert set(before.dropped.tolist()) != set(after.dropped.tolist())
    assert pair_repetition(before, after) == again / len(pairs_of(before))


def test_a_perfect_epoch():
    samples, spec = samples_of([10] * 8), spec_of("sorted", token_budget=20, slots_per_step=2)
    first, second = epochs(samples, spec)
    assert overall_efficiency(first, samples, CostModel(), num_ranks=2) == 1.0
    assert length_distance(first, samples) == 0.0
    assert pair_repetition(first, second) == 1.0
    assert rank_balance(first, samples, CostModel(), num_ranks=2) == 1.0


def test_rank_balance_is_what_ranks_pay_over_the_slowest_of_each_step():
    # One sample a micro-batch, in their own order: two steps of four slots, two ranks with two slots each.
    samples = samples_of([1, 2, 3, 4, 5, 6, 7, 8])
    first, _ = epochs(samples, spec_of("shuffle", token_budget=8, slots_per_step=4))
    manifest = replace(
        first,
        num_corpus_samples=8,
        sample_ids=np.arange(8),
        offsets=np.arange(9),
        padded_length=np.arange(1, 9).reshape(2, 4),
        num_tokens=np.arange(1, 9).reshape(2, 4),
        supervised_tokens=np.arange(1, 9).reshape(2, 4),
        cost=np.ones((2, 4)),
        filler=np.zeros((2, 4), dtype=np.bool_),
        dropped=np.empty(0, dtype=np.int64),
    )
    # Ranks hold 1 + 3 and 2 + 4, then 5 + 7 and 6 + 8; with one slot each, the slowest have 4 and 8.
    assert rank_balance(manifest, samples, CostModel(), num_ranks=2) == 36 / (2 * (6 + 14))
    assert rank_balance(manifest, samples, CostModel(), num_ranks=4) == 36 / (4 * (4 + 8))


@pytest.mark.parametrize("strategy", ["window", "varlen"])
def test_costs_of_micro_batches_are_sums_over_their_samples(strategy):
    lengths = [1 + i * 7919 % 40 for i in range(120)]
    samples = samples_of(lengths, [length // 2 for length in lengths])
    manifest, _ = epochs(samples, spec_of(strategy, slots_per_step=4))
    costs = np.zeros((manifest.num_steps, 4))
    for step in range(manifest.num_steps):
        for batch in manifest.step_batches(step):
            for i in batch.sample_ids.tolist():
                length = lengths[i] if strategy == "varlen" else batch.padded_length
                costs[step, batch.slot] += length * (1 + length / 7.0) + 2.5 * (lengths[i] // 2)
    cost = CostModel(quadratic_length=7.0, anchor_cost=2.5)
    assert batch_costs(manifest, samples, cost) == pytest.approx(costs, rel=1e-12)
    slowest = (costs[:, :2] + costs[:, 2:]).max(axis=1)
    assert rank_balance(manifest, samples, cost, num_ranks=2) == pytest.approx(costs.sum() / (2 * slowest.sum()))


def test_one_table_or_many_give_one_distance(monkeypatch):
    samples = samples_of([1 + i * 7919 % 97 for i in range(1000)])
    manifest = build_epoch_manifest(samples, spec_of("shuffle", token_budget=300, slots_per_step=3), epoch=0)
    assert manifest.num_steps > 50
    lengths = samples.num_tokens.tolist()
    of_steps = [
        [lengths[i] for batch in manifest.step_batches(step) if not batch.filler for i in batch.sample_ids]
        for step in range(manifest.num_steps)
    ]
    everywhere = [length for step in of_steps for length in step]
    expected = np.mean([wasserstein(step, everywhere) for step in of_steps])
    for cells in (97, 97 * 7, 97 * manifest.num_steps, 2**22):
        monkeypatch.setattr(diversity, "CELLS_AT_ONCE", cells)
        assert length_distance(manifest, samples) == pytest.approx(expected, rel=1e-12)
