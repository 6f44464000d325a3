"""All strategies side by side for one corpus: two epochs of each are planned and measured, none is estimated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.forecast import StrategyForecast, TimeModel
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.diversity import (
    batch_costs,
    length_distance,
    overall_efficiency,
    pair_repetition,
    rank_balance,
)
from dflash_pipeline.planning.manifest import build_epoch_manifest

STATIC = "bucket, static"


def alternatives(spec: BatchingSpec) -> dict[str, BatchingSpec]:
    """The same rules under every strategy, by name; `sorted` first, which the others are compared with."""
    plain = {
        name: replace(spec, strategy=name, padding="batch-max")
        for name in ("sorted", "shuffle", "bucket", "window", "varlen")
    }
    if spec.boundaries[0] > spec.token_budget:
        return plain  # No shape of one sample fits.
    return plain | {STATIC: replace(spec, strategy="bucket", padding="boundary")}


def name_of(spec: BatchingSpec) -> str:
    return STATIC if spec.padding == "boundary" else spec.strategy


def forecast(
    samples: SampleLengths, specs: Mapping[str, BatchingSpec], *, chosen: str, time: TimeModel | None
) -> Iterator[StrategyForecast]:
    """One forecast for each spec, in their order; throughput is relative to the spec named `sorted`.

    Without a `time` model a step takes what its cost says, and hours are unknown.
    """
    base: float | None = None
    for name, spec in specs.items():
        first, second = (build_epoch_manifest(samples, spec, epoch=epoch) for epoch in (0, 1))
        per_token = _time_per_token(first, samples, spec, time)
        base = per_token if base is None else base
        num_ranks = spec.slots_per_step // spec.micro_batches_per_rank
        summary = first.summary()
        yield StrategyForecast(
            name=name,
            chosen=name == chosen,
            num_dropped=summary.num_dropped,
            num_steps=summary.num_steps,
            num_micro_batches=summary.num_micro_batches,
            num_shapes=_num_shapes(first),
            padding_efficiency=summary.padding_efficiency,
            overall_efficiency=overall_efficiency(first, samples, spec.cost, num_ranks=num_ranks),
            rank_balance=rank_balance(first, samples, spec.cost, num_ranks=num_ranks),
            length_distance=length_distance(first, samples),
            pair_repetition=pair_repetition(first, second),
            relative_throughput=base / per_token,
            hours=None if time is None else per_token * summary.real_tokens / 3600,
        )


def _time_per_token(
    manifest: EpochManifest, samples: SampleLengths, spec: BatchingSpec, time: TimeModel | None
) -> float:
    """Seconds of a useful token, or its share of the cost paid where no times are known."""
    num_ranks = spec.slots_per_step // spec.micro_batches_per_rank
    costs = batch_costs(manifest, samples, spec.cost if time is None else time.cost)
    seconds = costs if time is None else costs * time.seconds_per_cost + time.seconds_per_micro_batch
    of_ranks = seconds.reshape(manifest.num_steps, -1, num_ranks).sum(axis=1)
    return float(of_ranks.max(axis=1).sum()) / int(manifest.num_tokens[~manifest.filler].sum())


def _num_shapes(manifest: EpochManifest) -> int:
    shapes = np.stack((manifest.num_rows.ravel(), manifest.padded_length.ravel()), axis=1)
    return int(np.unique(shapes, axis=0).shape[0])
