"""Lengths to boundaries, boundaries to manifests, manifests to a sealed plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel
from dflash_pipeline.contracts.corpus import CorpusSnapshot, LengthStatistics, SampleLengths
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.manifest import EpochManifest, EpochSummary
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import BucketBoundaries
from dflash_pipeline.planning.boundaries import choose_boundaries, padding_efficiency
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import (
    load_epoch,
    load_or_set_aside,
    plan_folder,
    save_epoch,
    save_spec,
    seal_plan,
)
from dflash_pipeline.store.warehouse import Warehouse


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedEpoch:
    """One epoch's summary, and whether its file was there already."""

    summary: EpochSummary
    reused: bool


def make_statistics(storage: Storage, snapshot: CorpusSnapshot) -> LengthStatistics:
    """The histogram of the training side, counted by SQL and kept in the warehouse's table `length_histogram`."""
    return Warehouse(storage.warehouse).histogram(snapshot.fingerprint)


def make_boundaries(recipe: Recipe, storage: Storage, statistics: LengthStatistics) -> BucketBoundaries:
    """The boundaries of least padding for this snapshot and the recipe's number of buckets."""
    record = recipe_boundaries(recipe, statistics)
    Warehouse(storage.warehouse).save_boundaries(
        statistics.snapshot, fingerprint=fingerprint(boundaries=record.boundaries), record=record
    )
    return record


def recipe_boundaries(recipe: Recipe, statistics: LengthStatistics) -> BucketBoundaries:
    """Those boundaries; nothing is written."""
    batching = recipe.batching
    boundaries = choose_boundaries(
        statistics,
        num_buckets=batching.num_buckets,
        grid=batching.boundary_grid,
        cost=recipe_cost(recipe),
        objective=batching.boundary_objective,
        token_budget=batching.token_budget,
    )
    return BucketBoundaries(
        snapshot=statistics.snapshot,
        boundaries=boundaries,
        padding_efficiency=padding_efficiency(statistics, boundaries),
    )


def recipe_cost(recipe: Recipe) -> CostModel:
    return CostModel(quadratic_length=recipe.batching.quadratic_length, anchor_cost=recipe.batching.anchor_cost)


def batching_spec(recipe: Recipe, boundaries: BucketBoundaries) -> BatchingSpec:
    batching = recipe.batching
    return BatchingSpec(
        strategy=batching.strategy,
        token_budget=batching.token_budget,
        slots_per_step=batching.slots_per_step,
        micro_batches_per_rank=batching.micro_batches_per_rank,
        boundaries=boundaries.boundaries,
        padding=batching.padding,
        cost=recipe_cost(recipe),
        seed=batching.seed,
        tail=batching.tail,
        overlong=batching.overlong,
    )


def sample_lengths(storage: Storage, snapshot: CorpusSnapshot) -> SampleLengths:
    """Lengths of the training samples, by sample id."""
    table = Warehouse(storage.warehouse).sequence_lengths(snapshot.fingerprint)
    return SampleLengths(
        snapshot=snapshot.fingerprint,
        num_tokens=table["num_tokens"].to_numpy().astype(np.int64),
        num_supervised=table["num_supervised"].to_numpy().astype(np.int64),
    )


def make_epochs(
    recipe: Recipe,
    storage: Storage,
    snapshot: CorpusSnapshot,
    boundaries: BucketBoundaries,
    epochs: Sequence[int],
    *,
    tell: Callable[[PlannedEpoch, EpochManifest], None],
) -> list[PlannedEpoch]:
    """Write the manifests of these epochs; whole ones are reused, damaged ones rebuilt. `tell` hears of each."""
    spec = batching_spec(recipe, boundaries)
    folder = plan_folder(storage.plans, snapshot=snapshot.fingerprint, spec=spec)
    save_spec(folder, spec)
    samples = sample_lengths(storage, snapshot)
    planned = []
    for epoch in epochs:
        manifest = load_or_set_aside(folder, epoch)
        reused = manifest is not None
        if manifest is None:
            manifest = build_epoch_manifest(samples, spec, epoch=epoch)
            save_epoch(folder, manifest)
        planned.append(PlannedEpoch(summary=manifest.summary(), reused=reused))
        tell(planned[-1], manifest)
    return planned


def make_plan(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, boundaries: BucketBoundaries
) -> Made[RunPlan]:
    """Add up the epochs on disk and seal them; the plan's totals are facts from here on."""
    spec = batching_spec(recipe, boundaries)
    folder = plan_folder(storage.plans, snapshot=snapshot.fingerprint, spec=spec)
    summaries = tuple(load_epoch(folder, epoch).summary() for epoch in range(recipe.batching.epochs))
    plan = RunPlan(snapshot=snapshot.fingerprint, spec=spec, epochs=summaries)
    reused = (folder / f"plan-{plan.fingerprint}.json").exists()
    if not reused:
        seal_plan(folder, plan)
    Warehouse(storage.warehouse).save_plan(plan, plans=storage.plans)
    return Made(record=plan, reused=reused)
