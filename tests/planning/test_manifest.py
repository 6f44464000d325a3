"""What every epoch keeps, for any corpus and any rules: nothing lost, nothing twice, no budget broken."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import MOST_TOKENS, BatchingSpec, CostModel
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning import lengths as lengths_module
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from tests.strategies import corpora, met, must_meet, samples_of, spec_of, specs, with_corners

THREE_STEPS_AND_ONE = BatchingSpec(strategy="shuffle", token_budget=10, slots_per_step=4, boundaries=(10,), tail="drop")
"""13 samples of 10 tokens make 13 micro-batches: one more than fills the steps."""


def built(samples: SampleLengths, spec: BatchingSpec, epoch: int = 0) -> EpochManifest:
    """The manifest; combinations that leave no full step are not what is tested."""
    try:
        return build_epoch_manifest(samples, spec, epoch=epoch)
    except Refused:
        assume(False)
        raise


def micro_batches(manifest: EpochManifest) -> list:
    return [batch for step in range(manifest.num_steps) for batch in manifest.step_batches(step)]


@must_meet("fillers", "dropped", "tail dropped", "static shapes", "one sample")
@with_corners(0)
@given(corpora(), specs(), st.integers(0, 300))
def test_scheduled_and_dropped_are_the_corpus(samples, spec, epoch):
    manifest = built(samples, spec, epoch)
    batches = micro_batches(manifest)
    scheduled = [i for batch in batches if not batch.filler for i in batch.sample_ids.tolist()]
    met("fillers", when=bool(manifest.filler.any()))
    met("dropped", when=manifest.dropped.size > 0)
    met("tail dropped", when=manifest.dropped.size > 0 and spec.tail == "drop")
    met("static shapes", when=spec.padding == "boundary")
    met("one sample", when=samples.num_tokens.size == 1)
    assert sorted(scheduled + manifest.dropped.tolist()) == list(range(samples.num_tokens.size))
    assert set(manifest.sample_ids.tolist()) == set(scheduled)
    assert manifest.epoch == epoch


@must_meet("full to the last token", "quadratic cost", "anchor cost", "documents end to end")
@with_corners()
@given(corpora(), specs())
def test_columns_say_what_the_samples_are(samples, spec):
    manifest = built(samples, spec)
    quadratic = spec.cost.quadratic_length
    for batch in micro_batches(manifest):
        tokens = samples.num_tokens[batch.sample_ids]
        met("full to the last token", when=batch.padded_tokens == spec.token_budget)
        met("quadratic cost", when=quadratic is not None)
        met("anchor cost", when=spec.cost.anchor_cost > 0)
        assert batch.padded_tokens <= spec.token_budget
        assert batch.num_tokens == tokens.sum()
        assert batch.supervised_tokens == samples.num_supervised[batch.sample_ids].sum()
        rows = [batch.padded_length] * tokens.size
        if spec.padding == "boundary":
            assert batch.padded_length == min(b for b in spec.boundaries if b >= tokens.max())
        elif spec.layout == "rows":
            assert batch.padded_length == tokens.max()
        else:
            met("documents end to end")
            assert batch.padded_length == batch.padded_tokens == tokens.sum()
            rows = tokens.tolist()
        expected = sum(row * (1 if quadratic is None else 1 + row / quadratic) for row in rows)
        assert batch.cost == pytest.approx(expected + spec.cost.anchor_cost * batch.supervised_tokens)


@must_meet("fillers", "several steps")
@with_corners()
@given(corpora(), specs())
def test_every_step_is_full_and_fillers_count_for_nothing(samples, spec):
    manifest = built(samples, spec)
    assert manifest.padded_length.shape == (manifest.num_steps, spec.slots_per_step)
    assert not manifest.filler[:-1].any()
    assert not manifest.filler.all(axis=1).any()
    met("several steps", when=manifest.num_steps > 1)
    summary = manifest.summary()
    real = [batch for batch in micro_batches(manifest) if not batch.filler]
    assert summary.num_micro_batches == len(real)
    assert summary.num_fillers == manifest.filler.size - len(real)
    assert summary.num_samples == samples.num_tokens.size - manifest.dropped.size
    kept = np.setdiff1d(np.arange(samples.num_tokens.size), manifest.dropped)
    assert summary.real_tokens == samples.num_tokens[kept].sum()
    assert summary.supervised_tokens == samples.num_supervised[kept].sum()
    assert summary.padded_tokens == sum(batch.padded_tokens for batch in real)
    assert summary.cost == pytest.approx(sum(batch.cost for batch in real))
    assert 0 < summary.padding_efficiency <= 1
    if summary.num_fillers:
        met("fillers")
        # Only what can't be split any more is filled.
        assert all(batch.sample_ids.size == 1 for batch in real)
        assert min(batch.padded_length for batch in real) == manifest.padded_length[manifest.filler].max()


@must_meet("overlong", "tail dropped")
@with_corners()
@given(corpora(), specs())
def test_only_what_the_rules_say_is_dropped(samples, spec):
    manifest = built(samples, spec)
    reach = samples.num_tokens
    if spec.padding == "boundary":
        reach = np.array([min(b for b in spec.boundaries if b >= x) if x else 0 for x in reach])
    overlong = set(np.flatnonzero((reach > spec.token_budget) | (reach < 1)).tolist())
    dropped = set(manifest.dropped.tolist())
    assert overlong <= dropped
    if spec.tail == "fill":
        assert dropped == overlong
    else:
        met("tail dropped", when=dropped > overlong)
    met("overlong", when=bool(overlong))
    assert manifest.dropped.tolist() == sorted(dropped)


def test_dropping_the_tail_leaves_less_than_a_step_out():
    manifest = build_epoch_manifest(samples_of([10] * 13), THREE_STEPS_AND_ONE, epoch=0)
    assert (manifest.num_steps, manifest.dropped.size) == (3, 1)
    with pytest.raises(Refused, match="3 micro-batches for 4 slots"):
        build_epoch_manifest(samples_of([10] * 3), THREE_STEPS_AND_ONE, epoch=0)


def test_samples_above_the_budget_are_named():
    with pytest.raises(Refused, match=r"batching.token_budget: samples 1, 3 are above the token budget of 8;"):
        build_epoch_manifest(samples_of([8, 9, 1, 30]), spec_of("shuffle", token_budget=8), epoch=0)
    with pytest.raises(Refused, match=r"sample 1 is above the token budget of 8;"):
        build_epoch_manifest(samples_of([8, 9]), spec_of("sorted", token_budget=8), epoch=0)
    with pytest.raises(Refused, match=r"samples 0, 1, .* 18, 19 and 5 more are above"):
        build_epoch_manifest(samples_of([9] * 25), spec_of("sorted", token_budget=8), epoch=0)


def test_a_budget_below_a_boundary_refuses_or_drops_what_is_padded_up_to_it():
    static = BatchingSpec(strategy="bucket", padding="boundary", token_budget=10, slots_per_step=1, boundaries=(5, 12))
    with pytest.raises(Refused, match="sample 1 is above the token budget of 10 when padded up to the boundary"):
        build_epoch_manifest(samples_of([5, 6, 4]), static, epoch=0)
    dropping = BatchingSpec(
        strategy="bucket", padding="boundary", token_budget=10, slots_per_step=1, boundaries=(5, 12), overlong="drop"
    )
    manifest = build_epoch_manifest(samples_of([5, 6, 4]), dropping, epoch=0)
    assert manifest.dropped.tolist() == [1]
    assert manifest.padded_length.tolist() == [[5]]


def test_bucket_needs_a_boundary_for_every_sample_and_others_do_not():
    with pytest.raises(Refused, match="sample 2 is longer than the last boundary 5"):
        build_epoch_manifest(samples_of([5, 1, 6]), spec_of("bucket", boundaries=(2, 5)), epoch=0)
    assert build_epoch_manifest(samples_of([5, 1, 6]), spec_of("sorted", boundaries=(2, 5)), epoch=0).num_steps == 1


def test_samples_without_a_token_are_dropped_and_none_at_all_is_refused():
    manifest = build_epoch_manifest(samples_of([0, 0, 7]), spec_of("bucket"), epoch=0)
    assert manifest.dropped.tolist() == [0, 1]
    assert manifest.sample_ids.tolist() == [2]
    one_token = build_epoch_manifest(samples_of([0, 1, 7]), spec_of("bucket"), epoch=0)
    assert one_token.dropped.tolist() == [0]
    with pytest.raises(Refused, match="none of 2 samples has a token and fits the budget of 100"):
        build_epoch_manifest(samples_of([0, 0]), spec_of("bucket"), epoch=0)


@pytest.mark.parametrize("strategy", ["sorted", "shuffle", "bucket"])
def test_corners(strategy):
    one = build_epoch_manifest(samples_of([7]), spec_of(strategy, slots_per_step=8), epoch=0)
    assert (one.num_steps, one.filler.sum()) == (1, 7)
    equal = build_epoch_manifest(samples_of([40] * 40), spec_of(strategy, token_budget=160, slots_per_step=2), epoch=0)
    assert (equal.num_steps, equal.filler.sum(), equal.summary().padding_efficiency) == (5, 0, 1.0)
    longest = build_epoch_manifest(
        samples_of([MOST_TOKENS] * 4),
        spec_of(strategy, token_budget=MOST_TOKENS, boundaries=(MOST_TOKENS,), slots_per_step=3),
        epoch=0,
    )
    assert longest.summary().real_tokens == longest.summary().padded_tokens == 4 * MOST_TOKENS
    assert longest.filler.sum() == 2


def test_a_hundred_thousand_samples_take_less_than_seconds():
    lengths = 1 + np.arange(100_000) * 7919 % 4000
    samples = SampleLengths(snapshot="snapshot", num_tokens=lengths, num_supervised=lengths)
    began = time.process_time()
    spec = BatchingSpec(
        strategy="bucket",
        token_budget=32_768,
        slots_per_step=8,
        boundaries=(1000, 2000, 4000),
        cost=CostModel(quadratic_length=24_576.0),
    )
    assert build_epoch_manifest(samples, spec, epoch=0).num_samples == 100_000
    assert time.process_time() - began < 2


@given(corpora(min_length=1))
def test_statistics_count_every_length(samples):
    statistics = length_statistics(samples)
    counted = [x for x, n in zip(statistics.lengths, statistics.counts, strict=True) for _ in range(n)]
    assert counted == sorted(samples.num_tokens.tolist())
    assert statistics.num_supervised_tokens == samples.num_supervised.sum()
    assert statistics.snapshot == samples.snapshot


def test_statistics_leave_out_samples_without_a_token():
    statistics = length_statistics(samples_of([0, 3, 0, 3, 5]))
    assert (statistics.lengths, statistics.counts) == ((3, 5), (2, 1))


def test_statistics_of_lengths_too_long_for_a_table_are_the_same(monkeypatch):
    samples = samples_of([7, 0, 3, 9, 3, 9, 9], [7, 0, 1, 9, 0, 2, 3])
    in_a_table = length_statistics(samples)
    monkeypatch.setattr(lengths_module, "_COUNTED_BELOW", 9)
    assert length_statistics(samples) == in_a_table
    assert (in_a_table.lengths, in_a_table.counts, in_a_table.num_supervised_tokens) == ((3, 7, 9), (2, 1, 3), 22)


def test_there_are_no_statistics_without_a_token():
    with pytest.raises(ContractBroken, match="0 unique lengths"):
        length_statistics(samples_of([0, 0]))


@pytest.mark.parametrize(
    ("lengths", "spec", "sentence"),
    [
        (
            [5, 1, 6],
            spec_of("bucket", boundaries=(2, 3, 5)),
            "batching.boundaries: sample 2 is longer than the last boundary 5; "
            "optimise the boundaries for this snapshot",
        ),
        (
            [8, 9, 1, 30],
            spec_of("shuffle", token_budget=8),
            "batching.token_budget: samples 1, 3 are above the token budget of 8; raise the budget, "
            "lower data.max_length so that they are truncated, or set batching.overlong: drop",
        ),
        (
            [0, 0],
            spec_of("sorted"),
            "batching: none of 2 samples has a token and fits the budget of 100; "
            "look at the lengths and raise the budget",
        ),
    ],
)
def test_refusals_in_full(lengths, spec, sentence):
    with pytest.raises(Refused) as refused:
        build_epoch_manifest(samples_of(lengths), spec, epoch=0)
    assert str(refused.value) == sentence


def test_twenty_samples_are_named_and_no_more_is_said():
    with pytest.raises(Refused, match=r"samples 0, 1, .* 18, 19 are above"):
        build_epoch_manifest(samples_of([9] * 20), spec_of("sorted", token_budget=8), epoch=0)
    with pytest.raises(Refused, match=r"samples 0, 1, .* 18, 19 and 1 more are above"):
        build_epoch_manifest(samples_of([9] * 21), spec_of("sorted", token_budget=8), epoch=0)


def test_without_a_boundary_below_the_budget_nothing_fits():
    spec = BatchingSpec(
        strategy="bucket",
        padding="boundary",
        token_budget=10,
        slots_per_step=1,
        boundaries=(12,),
        overlong="drop",
    )
    with pytest.raises(Refused, match="none of 2 samples has a token and fits the budget of 10"):
        build_epoch_manifest(samples_of([1, 5]), spec, epoch=0)


def test_a_boundary_as_long_as_the_budget_is_used():
    spec = BatchingSpec(strategy="bucket", padding="boundary", token_budget=12, slots_per_step=1, boundaries=(5, 12))
    assert build_epoch_manifest(samples_of([6]), spec, epoch=0).padded_length.tolist() == [[12]]
