"""What micro-batches hold and cost, against sums over their samples; and taking them in another order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.planning.batches import taken, weigh
from dflash_pipeline.planning.packing import Packing, one_after_another
from tests.strategies import costs, samples_of, spec_of

sizes_of_batches = st.lists(st.integers(1, 6), min_size=1, max_size=12)


def packed(sizes: list[int], padded_length: int = 40) -> Packing:
    counts = np.array(sizes, dtype=np.int64)
    ids = np.arange(counts.sum())[::-1].copy()
    return one_after_another(ids, counts, np.full(counts.size, padded_length, dtype=np.int64))


def one_by_one(length: int, supervised: int, cost: CostModel) -> float:
    attention = 0.0 if cost.quadratic_length is None else length / cost.quadratic_length
    return length * (1 + attention) + cost.anchor_cost * supervised


@given(sizes_of_batches, costs, st.sampled_from(["window", "varlen"]), st.randoms())
def test_totals_and_costs_are_sums_over_samples(sizes, cost, strategy, random):
    lengths = [random.randint(1, 40) for _ in range(sum(sizes))]
    samples = samples_of(lengths, [random.randint(0, length) for length in lengths])
    packing = packed(sizes)
    batches = weigh(packing, samples, replace(spec_of(strategy), cost=cost))
    for m, ids in enumerate(np.split(packing.sample_ids, np.cumsum(packing.sizes)[:-1])):
        tokens, supervised = samples.num_tokens[ids], samples.num_supervised[ids]
        assert batches.num_tokens[m] == tokens.sum()
        assert batches.supervised[m] == supervised.sum()
        padded = [40] * ids.size if strategy == "window" else tokens.tolist()
        paid = sum(one_by_one(length, s, cost) for length, s in zip(padded, supervised.tolist(), strict=True))
        assert batches.cost[m] == pytest.approx(paid, rel=1e-12)


@given(sizes_of_batches, st.randoms())
def test_taken_micro_batches_stay_together(sizes, random):
    samples = samples_of([1 + i % 40 for i in range(sum(sizes))])
    before = weigh(packed(sizes), samples, spec_of("window"))
    order = [random.randrange(len(sizes)) for _ in range(len(sizes) + 2)]
    after = taken(before, np.array(order))
    parts = np.split(before.sample_ids, np.cumsum(before.sizes)[:-1])
    assert [p.tolist() for p in np.split(after.sample_ids, np.cumsum(after.sizes)[:-1])] == [
        parts[m].tolist() for m in order
    ]
    assert after.starts.tolist() == (np.cumsum(after.sizes) - after.sizes).tolist()
    for name in ("sizes", "padded_length", "num_tokens", "supervised", "cost"):
        assert getattr(after, name).tolist() == [getattr(before, name)[m] for m in order]
