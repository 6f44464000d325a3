"""From a recipe and a plan to what the ranks are told: the run's name and folder among it."""

from __future__ import annotations

from pathlib import Path

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.model.anchors import default_anchor_share
from dflash_pipeline.model.config import Execution
from dflash_pipeline.model.loading import load_config
from dflash_pipeline.model.objective import Objective, default_decay
from dflash_pipeline.model.target import check_plain_head
from dflash_pipeline.model.target_files import target_fingerprint
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.early import early_settings
from dflash_pipeline.stages.terminal import show_bars
from dflash_pipeline.stages.warm_start import choose_start
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import plan_folder
from dflash_pipeline.tracking.store_uri import server_artifacts, server_uri
from dflash_pipeline.training.settings import LaunchConfig, RunLine, Saving, Sharding, TrainingSettings


def launch_config(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan, *, fresh: bool
) -> LaunchConfig:
    """Everything the ranks need. `fresh`: of the next folder of the run, beside those that are there."""
    drafter = recipe_drafter(recipe)
    if recipe.training.kl > 0:
        check_plain_head(load_config(recipe.target.path), where="training.kl")
    settings = training_settings(recipe)
    target = target_fingerprint(recipe.target.path)
    line = RunLine(plan=plan.fingerprint, target=target, drafter=drafter, settings=settings)
    start = choose_start(recipe, storage, line, fresh=fresh)
    run_dir = _run_dir(storage, line.identity(start), fresh=fresh)
    uri = server_uri(recipe.tracking.uri, storage.root)
    return LaunchConfig(
        run=run_dir.name,
        run_dir=str(run_dir),
        plan_dir=str(plan_folder(storage.plans, snapshot=plan.snapshot, spec=plan.spec)),
        plan=plan.fingerprint,
        snapshot_dir=str(storage.snapshots / snapshot.fingerprint),
        shards=snapshot.shards,
        features_dir=None,
        target_dir=str(recipe.target.path),
        target=target,
        drafter=drafter,
        settings=settings,
        wanted_start=recipe.training.warm_start,
        warm_start=start,
        device=recipe.training.device,
        saving=Saving(
            keep=recipe.training.keep_checkpoints,
            every_steps=recipe.training.checkpoint_steps,
            every_minutes=recipe.training.checkpoint_minutes,
        ),
        execution=Execution(recompute=recipe.training.activation_checkpointing, compiled=recipe.training.compile),
        sharding=Sharding(drafter=recipe.training.drafter_sharding, target=recipe.training.target_sharding),
        max_steps=recipe.training.max_steps,
        early=early_settings(recipe),
        step_timeout_seconds=recipe.training.step_timeout_seconds,
        experiment=recipe.name,
        recipe=fingerprint(recipe=recipe.model_dump(mode="json")),
        tracking_uri=uri,
        artifact_location=server_artifacts(uri, storage.root),
        points_a_metric=recipe.tracking.points_a_metric,
        show_progress=show_bars(),
    )


def training_settings(recipe: Recipe) -> TrainingSettings:
    """What decides the weights, with the rules for what the recipe leaves open."""
    training, block_size = recipe.training, recipe.drafter.block_size
    return TrainingSettings(
        learning_rate=training.learning_rate,
        end_fraction=training.end_fraction,
        betas=training.betas,
        weight_decay=training.weight_decay,
        warmup_fraction=training.warmup_fraction,
        max_gradient_norm=training.max_gradient_norm,
        anchor_share=training.anchor_share or default_anchor_share(block_size),
        anchors_per_sample=training.anchors_per_sample,
        objective=Objective(
            weighting=training.weighting,
            decay=training.decay or default_decay(block_size),
            smoothing=training.dpace_smoothing,
            kl=training.kl,
        ),
        features_kept=training.feature_cache_gib is not None,
        seed=recipe.drafter.seed,
    )


def _run_dir(storage: Storage, run: str, *, fresh: bool) -> Path:
    """The newest folder of this run, or with `fresh` the next: `<run>`, `<run>-2`, `<run>-3` …"""
    number = 1
    while _numbered(storage, run, number + 1).exists():
        number += 1
    if fresh and _numbered(storage, run, number).exists():
        number += 1
    return _numbered(storage, run, number)


def _numbered(storage: Storage, run: str, number: int) -> Path:
    return storage.runs / (run if number == 1 else f"{run}-{number}")
