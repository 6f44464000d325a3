"""Forecasts are measured on planned epochs; the history's order of strategies comes out of the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.forecast import StrategyForecast, TimeModel
from dflash_pipeline.planning.boundaries import optimise_boundaries
from dflash_pipeline.planning.diversity import (
    batch_costs,
    length_distance,
    overall_efficiency,
    pair_repetition,
    rank_balance,
)
from dflash_pipeline.planning.forecast import STATIC, alternatives, forecast, name_of
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from tests.strategies import samples_of, spec_of

LENGTHS = np.clip(np.exp(np.random.default_rng(7).normal(6.2, 0.8, 20_000)), 32, 4096).astype(np.int64)
SAMPLES = samples_of(LENGTHS.tolist())
SPEC = spec_of(
    "window",
    token_budget=16_384,
    slots_per_step=8,
    boundaries=optimise_boundaries(length_statistics(SAMPLES), num_buckets=6),
)


@pytest.fixture
def found() -> dict[str, StrategyForecast]:
    return {row.name: row for row in forecast(SAMPLES, alternatives(SPEC), chosen="window", time=None)}


def test_every_strategy_is_there_and_one_is_chosen(found):
    assert list(found) == ["sorted", "shuffle", "bucket", "window", "varlen", STATIC]
    assert [name for name, row in found.items() if row.chosen] == ["window"]
    assert name_of(replace(SPEC, strategy="bucket", padding="boundary")) == STATIC


def test_the_history_comes_out(found):
    speed = {name: row.relative_throughput for name, row in found.items()}
    assert speed["sorted"] == 1.0
    # 25.1 and 12 of 28.5 Ktok/s: bucketing lost an eighth, a full shuffle more than half.
    assert 0.75 < speed["bucket"] < 0.95
    assert speed["shuffle"] < 0.55
    assert speed["window"] > 0.94
    assert speed["varlen"] > 0.99


def test_figures_are_those_of_the_planned_epoch(found):
    manifest = build_epoch_manifest(SAMPLES, replace(SPEC, strategy="bucket"), epoch=0)
    row = found["bucket"]
    assert (row.num_steps, row.num_micro_batches) == (manifest.num_steps, manifest.padded_length.size)
    assert row.padding_efficiency == manifest.summary().padding_efficiency
    shapes = zip(manifest.batch_sizes.ravel().tolist(), manifest.padded_length.ravel().tolist(), strict=True)
    assert row.num_shapes == len(set(shapes))
    assert found[STATIC].num_shapes <= 3 * len(SPEC.boundaries)
    assert row.hours is None


def test_hours_are_those_of_the_time_model():
    time = TimeModel(
        cost=CostModel(), seconds_per_cost=2e-3, seconds_per_micro_batch=0.5, relative_error=0.0, num_steps=100
    )
    [row] = forecast(SAMPLES, {"varlen": replace(SPEC, strategy="varlen")}, chosen="varlen", time=time)
    manifest = build_epoch_manifest(SAMPLES, replace(SPEC, strategy="varlen"), epoch=0)
    seconds = (manifest.cost * 2e-3 + 0.5).max(axis=1).sum()
    assert row.hours == pytest.approx(seconds / 3600)
    assert row.relative_throughput == 1.0


def test_without_a_shape_that_fits_there_is_no_static_bucket():
    assert STATIC not in alternatives(replace(SPEC, boundaries=(20_000,)))


SMALL = samples_of([0, *(1 + i * 7919 % 40 for i in range(300))])
ACCUMULATED = replace(
    spec_of("bucket", token_budget=200, slots_per_step=8, boundaries=(10, 20, 40)),
    micro_batches_per_rank=2,
    cost=CostModel(quadratic_length=30.0),
)


@pytest.mark.parametrize("strategy", ["bucket", "varlen"])
def test_every_figure_is_of_the_ranks_and_rules_asked_for(strategy):
    spec = replace(ACCUMULATED, strategy=strategy)
    time = TimeModel(
        cost=CostModel(quadratic_length=9.0),
        seconds_per_cost=2e-3,
        seconds_per_micro_batch=0.5,
        relative_error=0.0,
        num_steps=100,
    )
    specs = {"first": replace(spec, strategy="sorted"), "second": spec}
    base, row = forecast(SMALL, specs, chosen="none", time=time)
    assert not row.chosen
    first, second = (build_epoch_manifest(SMALL, spec, epoch=epoch) for epoch in (0, 1))
    assert row.num_dropped == first.dropped.size == 1
    assert row.overall_efficiency == overall_efficiency(first, SMALL, spec.cost, num_ranks=4)
    assert row.rank_balance == rank_balance(first, SMALL, spec.cost, num_ranks=4)
    assert row.length_distance == length_distance(first, SMALL)
    assert row.pair_repetition == pair_repetition(first, second)
    # Two micro-batches a rank, slots r and r + 4: each costs its time and the constant.
    seconds = batch_costs(first, SMALL, time.cost) * 2e-3 + 0.5
    of_steps = (seconds[:, :4] + seconds[:, 4:]).max(axis=1)
    assert row.hours == pytest.approx(of_steps.sum() / 3600)
    assert row.relative_throughput == pytest.approx(base.hours / row.hours)


def test_alternatives_differ_in_strategy_and_padding_alone():
    found = alternatives(replace(ACCUMULATED, padding="boundary"))
    assert list(found) == ["sorted", "shuffle", "bucket", "window", "varlen", STATIC]
    for name, spec in found.items():
        static = name == STATIC
        assert spec == replace(
            ACCUMULATED, strategy="bucket" if static else name, padding="boundary" if static else "batch-max"
        )
        assert name_of(spec) == name
    # The shortest bucket is just filled by one sample.
    assert STATIC in alternatives(replace(ACCUMULATED, boundaries=(200, 201)))
