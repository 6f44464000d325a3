"""Counts of a corpus agree with one another from construction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import MOST_TOKENS
from dflash_pipeline.contracts.corpus import CorpusSnapshot, LengthStatistics, SampleLengths
from dflash_pipeline.contracts.errors import ContractBroken
from tests.strategies import histogram_of, histograms, samples_of

SNAPSHOT = CorpusSnapshot(
    fingerprint="s",
    ingestion="i",
    tokenizer="t",
    template="c",
    answers="source",
    max_length=10,
    num_train_samples=2,
    num_validation_samples=1,
    num_tokens=9,
    num_supervised_tokens=4,
    dropped=(("too_long", 1),),
    shards=("tokens-00000.arrow",),
)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_train_samples": 0}, "snapshot s: the snapshot holds no training sample"),
        ({"num_supervised_tokens": 0}, "snapshot s: 0 supervised of 9 tokens"),
        ({"num_supervised_tokens": 10}, "snapshot s: 10 supervised of 9 tokens"),
    ],
)
def test_a_snapshot_has_something_to_learn(change, what):
    with pytest.raises(ContractBroken, match=what):
        replace(SNAPSHOT, **change)


def test_a_snapshot_counts_both_sides():
    assert SNAPSHOT.num_samples == 3
    assert replace(SNAPSHOT, num_train_samples=1, num_supervised_tokens=9).num_samples == 2


@pytest.mark.parametrize(
    ("lengths", "counts", "supervised", "what"),
    [
        ((), (), 0, "0 unique lengths with 0 counts"),
        ((1, 2), (1,), 0, "2 unique lengths with 1 counts"),
        ((0, 2), (1, 1), 0, "lengths are not positive and ascending"),
        ((2, 2), (1, 1), 0, "lengths are not positive and ascending"),
        ((1, 3, 2), (1, 1, 1), 0, "lengths are not positive and ascending"),
        ((1, 2), (1, 0), 0, "a length without a sample"),
        ((1, 2), (1, 1), 4, "4 supervised of 3 tokens"),
        ((1, 2), (1, 1), -1, "-1 supervised of 3 tokens"),
    ],
)
def test_statistics_are_a_histogram(lengths, counts, supervised, what):
    with pytest.raises(ContractBroken, match=f"length statistics of snapshot s: {what}"):
        LengthStatistics(snapshot="s", lengths=lengths, counts=counts, num_supervised_tokens=supervised)


@given(histograms)
def test_totals_are_those_of_the_samples(statistics):
    samples = [x for x, n in zip(statistics.lengths, statistics.counts, strict=True) for _ in range(n)]
    assert statistics.num_samples == len(samples)
    assert statistics.num_tokens == sum(samples)
    assert statistics.max_length == max(samples)
    half = replace(statistics, num_supervised_tokens=statistics.num_tokens // 2)
    assert half.supervised_fraction == (statistics.num_tokens // 2) / statistics.num_tokens


@given(histograms, st.integers(1, 1000))
def test_a_quantile_is_the_smallest_length_that_enough_do_not_exceed(statistics, thousandths):
    fraction = thousandths / 1000
    samples = [x for x, n in zip(statistics.lengths, statistics.counts, strict=True) for _ in range(n)]
    reached = [x for x in statistics.lengths if sum(s <= x for s in samples) / len(samples) >= fraction]
    assert statistics.quantile(fraction) == reached[0]


def test_quantiles_are_not_moved_by_rounding():
    hundred = histogram_of(dict.fromkeys(range(1, 101), 1))
    assert [hundred.quantile(p / 100) for p in range(1, 101)] == list(range(1, 101))
    assert hundred.quantile(0.071) == 8


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan")])
def test_a_quantile_of_nothing_or_of_more_than_all_is_refused(fraction):
    with pytest.raises(ContractBroken, match=f"quantile of {fraction}"):
        histogram_of({1: 1}).quantile(fraction)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("tokens", "supervised", "what"),
    [
        (ints(), ints(), "there are no samples"),
        (ints(1, 2), ints(1), r"\(2,\) lengths with \(1,\) supervised counts"),
        (ints(1, 2).reshape(2, 1), ints(1, 2).reshape(2, 1), r"\(2, 1\) lengths"),
        (ints(5, -1), ints(0, 0), "sample 1 has 0 supervised of -1 tokens"),
        (ints(5, 3), ints(5, 4), "sample 1 has 4 supervised of 3 tokens"),
        (ints(5, 3), ints(-1, 0), "sample 0 has -1 supervised of 5 tokens"),
        (ints(1, MOST_TOKENS + 1), ints(1, 0), f"sample 1 has 0 supervised of {MOST_TOKENS + 1} tokens"),
        (ints(1).astype(np.int32), ints(1), "columns of int32 and int64"),
        (ints(1), ints(1).astype(np.float64), "columns of int64 and float64"),
    ],
)
def test_lengths_of_samples(tokens, supervised, what):
    with pytest.raises(ContractBroken, match=f"sample lengths of snapshot s: {what}"):
        SampleLengths(snapshot="s", num_tokens=tokens, num_supervised=supervised)


def test_lengths_can_not_be_written_and_zero_is_one():
    samples = samples_of([0, MOST_TOKENS])
    for column in (samples.num_tokens, samples.num_supervised):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
