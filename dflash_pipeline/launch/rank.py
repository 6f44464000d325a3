"""What torchrun starts on every rank: `python -m dflash_pipeline.launch.rank CONFIG`.

Exit codes: 0 finished or at the limit of steps, 143 stopped by request with a checkpoint, 1 or 2 as the error says. A
rank that fails writes `error-rank-N.txt` beside the run's record, so that the launcher can say why.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import torch
from dagster_pipes import open_dagster_pipes

from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.contracts.run import Attempt, RunRecord
from dflash_pipeline.launch.leaving import run_and_leave
from dflash_pipeline.launch.lifeline import watch_lifeline
from dflash_pipeline.launch.rank_trackers import PipesLog, RunBook, Trackers
from dflash_pipeline.launch.run_facts import more_settings, run_facts
from dflash_pipeline.launch.torchrun import STOPPED, rank_error_path
from dflash_pipeline.store.plans import load_plan
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_tracker import MlflowTracker
from dflash_pipeline.training.alarm_tracker import watched
from dflash_pipeline.training.distributed import process_group
from dflash_pipeline.training.event_log import EventLog
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.outcome import Outcome
from dflash_pipeline.training.run_page import page_name, page_tags
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.step_table import StepTable
from dflash_pipeline.training.step_watch import StepWatch, write_and_exit
from dflash_pipeline.training.tracker import NullTracker, Params, Tracker

GRACE_SECONDS = 25.0
END_WAIT_SECONDS = 30.0
"""A first connection to a new SQLite store takes several seconds, which a short run may not have had."""

logger = logging.getLogger("dflash_pipeline.launch.rank")


class StopRequest:
    """Set by SIGTERM or SIGINT; read once a step. The step under way is finished and saved first."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def main(arguments: Sequence[str]) -> int:
    """Run this rank of the run that the file `arguments[0]` describes."""
    config = load_record(Path(arguments[0]), LaunchConfig)
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format=f"rank {rank}: %(message)s")
    stop = StopRequest()
    if lifeline := os.environ.get("DFLASH_LIFELINE"):
        watch_lifeline(Path(lifeline), grace_seconds=GRACE_SECONDS)
    try:
        return _run(config, rank, stop)
    except BaseException as error:
        text = str(error) if isinstance(error, DflashError) else traceback.format_exc()
        rank_error_path(Path(config.run_dir), rank=rank).write_text(text, encoding="utf-8")
        if isinstance(error, DflashError):
            logger.error("%s", error)
            return error.exit_code
        raise


def _run(config: LaunchConfig, rank: int, stop: StopRequest) -> int:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.use_deterministic_algorithms(config.device == "cpu")
    local_rank, world_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    with ExitStack() as stack:
        ranks = stack.enter_context(
            process_group(rank=rank, local_rank=local_rank, world_size=world_size, device=config.device)
        )
        record = _record(config)
        ranks.wait_for_all()  # Everyone has read run.json before the first rank writes it.
        end_stalled = write_and_exit(rank_error_path(Path(config.run_dir), rank=rank))
        watch = StepWatch(seconds=config.step_timeout_seconds, rank=rank, end=end_stalled).start()
        trainer = Trainer(
            config,
            ranks=ranks,
            tracker=NullTracker(),
            attempt=record.next_attempt,
            stop_asked=lambda: stop.asked,
            board=ProgressBoard(),
            beat=watch.beat,
        )
        if not ranks.is_first:
            outcome = trainer.train()
            watch.stop()
            return _exit_code(outcome)
        attempt = Attempt(
            number=record.next_attempt,
            num_ranks=world_size,
            first_step=trainer.start,
            status="running",
            last_step=trainer.start,
        )
        tracker = trainer.reporter.tracker = watched(
            _trackers(config, record, attempt, stack),
            Path(config.run_dir),
            drafter=trainer.drafter,
            first_step=trainer.start,
        )
        tracker.start(_params(config, trainer, attempt))
        try:
            outcome = trainer.train()
        except BaseException:
            tracker.end("failed")
            raise
        watch.stop()
        tracker.end(outcome.status)
        return _exit_code(outcome)


def _exit_code(outcome: Outcome) -> int:
    return STOPPED if outcome.asked_to_stop and not outcome.finished else 0


def _record(config: LaunchConfig) -> RunRecord:
    path = Path(config.run_dir) / "run.json"
    if path.exists():
        return load_record(path, RunRecord)
    total = load_plan(Path(config.plan_dir), config.plan).total_steps
    return RunRecord(run=config.run, plan=config.plan, target=config.target, total_steps=total)


def _trackers(config: LaunchConfig, record: RunRecord, attempt: Attempt, stack: ExitStack) -> Trackers:
    log, table = EventLog(Path(config.run_dir) / "events.jsonl"), StepTable(Path(config.run_dir))
    mlflow = MlflowTracker(
        config.tracking_uri,
        config.experiment,
        run_dir=Path(config.run_dir),
        artifact_location=config.artifact_location,
        run_id=record.mlflow_run_id,
        run_name=page_name(config),
        end_wait_seconds=END_WAIT_SECONDS,
        files=(table.path,),
        tags=page_tags(config),
    )
    # The log comes first: the table and MLflow are filled from it.
    trackers: list[Tracker] = [log, table, mlflow]
    if "DAGSTER_PIPES_CONTEXT" in os.environ:
        trackers.append(PipesLog(stack.enter_context(open_dagster_pipes())))
    # The book comes last: it says "finished" only when everything else is written.
    return Trackers([*trackers, RunBook(config, record, attempt, mlflow)])


def _params(config: LaunchConfig, trainer: Trainer, attempt: Attempt) -> Params:
    spec, settings = trainer.plan.spec, config.settings
    return {
        "run": config.run,
        "plan": config.plan,
        "snapshot": trainer.plan.snapshot,
        "spec": spec.fingerprint,
        "target": config.target,
        "strategy": spec.strategy,
        "boundaries": ",".join(str(b) for b in spec.boundaries),
        "token_budget": spec.token_budget,
        "slots_per_step": spec.slots_per_step,
        "num_epochs": trainer.plan.num_epochs,
        "total_steps": trainer.plan.total_steps,
        "points_a_metric": config.points_a_metric,
        "block_size": config.drafter.block_size,
        "num_layers": config.drafter.num_layers,
        "tap_layer_ids": ",".join(str(i) for i in config.drafter.tap_layer_ids),
        "learning_rate": settings.learning_rate,
        "warmup_fraction": settings.warmup_fraction,
        "end_fraction": settings.end_fraction,
        "anchor_share": settings.anchor_share,
        "anchors_per_sample": settings.anchors_per_sample,
        "weighting": settings.objective.weighting,
        "decay": settings.objective.decay,
        "kl": settings.objective.kl,
        "num_ranks": attempt.num_ranks,
        "first_step": attempt.first_step,
        **more_settings(config),
        **run_facts(config),
    }


if __name__ == "__main__":
    run_and_leave(main, sys.argv[1:])
