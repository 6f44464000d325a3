"""The training op: from a sealed plan to a finished run, through torchrun. Resumes the unfinished, reuses the rest."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.launch.early_side import measured_beside
from dflash_pipeline.launch.torchrun import run_ranks
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.early import early_work, stopped_early
from dflash_pipeline.stages.features import make_features
from dflash_pipeline.stages.forensics_files import keep_forensics
from dflash_pipeline.stages.launch_config import launch_config
from dflash_pipeline.stages.progress import Tell
from dflash_pipeline.stages.run_result import run_result
from dflash_pipeline.stages.warm_start import keep_first_weights, told_start
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_plan
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.warehouse import Warehouse
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT
from dflash_pipeline.training.checkpoint import checkpoint_name, newest_whole_checkpoint
from dflash_pipeline.training.distributed import check_world_size
from dflash_pipeline.training.event_log import last_attempt_spikes
from dflash_pipeline.training.settings import LaunchConfig
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
    start = config.warm_start
    tell(f"training: {told_start(recipe, None if start is None else start.run)}")
    if start is not None:
        keep_first_weights(storage, start, run_dir)
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
