"""Forecasts are measured on planned epochs; the history's order of strategies comes out of the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.forecast import StrategyForecast, TimeModel
from dflash_pipeline.planning.boundaries import optimise_boundaries
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


@pytest.fixture(scope="module")
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
