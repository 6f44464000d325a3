"""The training op: from a sealed plan to a finished run, through torchrun. Resumes the unfinished, reuses the rest."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import DflashError, Failed
from dflash_pipeline.contracts.events import StepRecord
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.launch.early_side import measured_beside
from dflash_pipeline.launch.torchrun import run_ranks
from dflash_pipeline.model.anchors import default_anchor_share
from dflash_pipeline.model.config import Execution
from dflash_pipeline.model.loading import load_config
from dflash_pipeline.model.objective import Objective, default_decay
from dflash_pipeline.model.target import check_plain_head
from dflash_pipeline.model.target_files import target_fingerprint
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.early import early_settings, early_work, stopped_early
from dflash_pipeline.stages.features import make_features
from dflash_pipeline.stages.forensics_files import keep_forensics
from dflash_pipeline.stages.progress import Tell
from dflash_pipeline.stages.terminal import show_bars
from dflash_pipeline.stages.time_spent import time_spent
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_plan, plan_folder
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.warehouse import Warehouse
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT, server_artifacts, server_uri
from dflash_pipeline.training.checkpoint import checkpoint_name, newest_whole_checkpoint
from dflash_pipeline.training.distributed import check_world_size
from dflash_pipeline.training.event_json import as_record
from dflash_pipeline.training.event_log import last_attempt_spikes, read_events
from dflash_pipeline.training.settings import LaunchConfig, Saving, Sharding, TrainingSettings, run_fingerprint
from dflash_pipeline.training.tracker import EndStatus

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How the ranks are started this time: no part of the run's identity."""

    num_ranks: int
    fresh: bool = False
    """Start over beside what is there, instead of resuming or reusing it."""
    environment: Mapping[str, str]


def finished_drafter(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan, *, fresh: bool
) -> TrainedDrafter | None:
    """The run of this plan, target and settings if no step of it is left to do; never with `fresh`.

    It is finished and its last checkpoint whole; or it was stopped early, and would be by today's recipe too.
    """
    config = launch_config(recipe, storage, snapshot, plan, fresh=fresh)
    run_dir = Path(config.run_dir)
    return run_result(config, run_dir) if _is_finished(run_dir) or _is_stopped_early(config, run_dir) else None


def train_drafter(
    recipe: Recipe,
    storage: Storage,
    snapshot: CorpusSnapshot,
    plan: RunPlan,
    launch: Launch,
    *,
    tell: Tell = logger.info,
) -> TrainedDrafter:
    """Train to the plan's end with torchrun, from the newest whole checkpoint if there is one.

    `tell` hears what goes before the ranks start.
    """
    check_world_size(launch.num_ranks, plan.spec.slots_per_step)
    config = launch_config(recipe, storage, snapshot, plan, fresh=launch.fresh)
    features = make_features(recipe, storage, snapshot, target=config.target, drafter=config.drafter, tell=tell)
    config = replace(config, features_dir=None if features is None else str(features))
    load_plan(Path(config.plan_dir), config.plan)  # Refused here, not by every rank, when the plan is gone.
    run_dir = Path(config.run_dir)
    path = run_dir / "launch.json"
    save_record(path, config)
    work = early_work(recipe, storage, snapshot, config.drafter, tell=tell)
    status: EndStatus = "killed"
    try:
        with measured_beside(run_dir, work, environment=os.environ):
            run_ranks(
                path,
                num_ranks=launch.num_ranks,
                threads_per_rank=recipe.training.threads_per_rank,
                run_dir=run_dir,
                environment={**CLIENT_ENVIRONMENT, **launch.environment},
            )
        status = "finished"
    except DflashError:
        status = "failed"
        raise
    finally:
        _settle(storage, config, status)
    trained = run_result(config, run_dir)
    if trained.stopped_early is not None:
        tell(f"training: stopped early: {trained.stopped_early}")
    return trained


def launch_config(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan, *, fresh: bool
) -> LaunchConfig:
    drafter = recipe_drafter(recipe)
    if recipe.training.kl > 0:
        check_plain_head(load_config(recipe.target.path), where="training.kl")
    settings = training_settings(recipe)
    target = target_fingerprint(recipe.target.path)
    identity = run_fingerprint(plan=plan.fingerprint, target=target, drafter=drafter, settings=settings)
    run_dir = _run_dir(storage, identity, fresh=fresh)
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


def _is_finished(run_dir: Path) -> bool:
    """Finished, and its last checkpoint still whole: otherwise the ranks go on from the newest one that is."""
    record = run_dir / "run.json"
    if not record.exists() or load_record(record, RunRecord).status != "finished":
        return False
    checkpoint = newest_whole_checkpoint(run_dir / "checkpoints")
    return checkpoint is not None and checkpoint.name == checkpoint_name(load_record(record, RunRecord).total_steps)


def _is_stopped_early(config: LaunchConfig, run_dir: Path) -> bool:
    record = run_dir / "run.json"
    if not record.exists() or load_record(record, RunRecord).status != "stopped":
        return False
    reason = stopped_early(run_dir, config.early)
    return reason is not None and newest_whole_checkpoint(run_dir / "checkpoints") is not None


def _settle(storage: Storage, config: LaunchConfig, status: EndStatus) -> None:
    """After the ranks: bring the warehouse up to date, and end an MLflow run that a killed rank left running."""
    from dflash_pipeline.tracking.mlflow_runs import repair_status

    run_dir = Path(config.run_dir)
    if not (run_dir / "run.json").exists():
        return
    record = load_record(run_dir / "run.json", RunRecord)
    if record.mlflow_run_id and repair_status(config.tracking_uri, record.mlflow_run_id, status):
        logger.info("the MLflow run %s was left running; it now says %s", record.mlflow_run_id, status)
    warehouse = Warehouse(storage.warehouse)
    warehouse.save_run(record)
    told = last_attempt_spikes(run_dir / "events.jsonl")
    warehouse.save_spikes(config.run, [spike for spike in told if spike.rule == "point"])
    keep_forensics(storage, config.run)


def run_result(config: LaunchConfig, run_dir: Path) -> TrainedDrafter:
    """What a run has reached with its newest whole checkpoint, whether it is finished or not."""
    record = load_record(run_dir / "run.json", RunRecord)
    # Steps beyond the last one were done by an attempt whose checkpoints are gone.
    reached = record.attempts[-1].last_step if record.attempts else 0
    steps = {
        e["global_step"]: e
        for e in read_events(run_dir / "events.jsonl")
        if e["kind"] == "step" and e["global_step"] <= reached
    }
    checkpoint = newest_whole_checkpoint(run_dir / "checkpoints")
    if checkpoint is None or not steps:
        raise Failed(
            "the ranks ended without a whole checkpoint", where=str(run_dir), fix="look at events.jsonl, then run again"
        )
    ordered = [steps[number] for number in sorted(steps)]
    seconds = sum(e["seconds"] for e in ordered)
    return TrainedDrafter(
        run=config.run,
        run_dir=str(run_dir),
        plan=config.plan,
        checkpoint=str(checkpoint),
        total_steps=record.total_steps,
        steps_done=ordered[-1]["global_step"],
        num_ranks=record.attempts[-1].num_ranks,
        first_loss=float.fromhex(ordered[0]["loss_hex"]),
        last_loss=float.fromhex(ordered[-1]["loss_hex"]),
        num_spikes=sum(bool(e["spike"]) for e in ordered),
        useful_tokens_per_second=sum(e["real_tokens"] for e in ordered) / seconds,
        padded_tokens_per_second=sum(e["padded_tokens"] for e in ordered) / seconds,
        mlflow_run_id=record.mlflow_run_id,
        stopped_early=stopped_early(run_dir, config.early) if record.status == "stopped" else None,
        spent=time_spent([step for e in ordered if isinstance(step := as_record(e), StepRecord)]),
    )
