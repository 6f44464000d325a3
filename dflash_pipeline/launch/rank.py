"""What torchrun starts on every rank: `python -m dflash_pipeline.launch.rank CONFIG`.

Exit codes: 0 finished, 143 stopped by request with a checkpoint, 1 or 2 as the error says. A rank that fails writes
`error-rank-N.txt` beside the run's record, so that the launcher can say why.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch
from dagster_pipes import PipesContext, open_dagster_pipes

from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.events import EpochRecord, SpikeRecord, StepRecord
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.contracts.run import Attempt, AttemptStatus, RunRecord
from dflash_pipeline.faults import fault_point
from dflash_pipeline.launch.lifeline import watch_lifeline
from dflash_pipeline.launch.torchrun import rank_error_path
from dflash_pipeline.store.plans import load_plan
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.tracking.mlflow_tracker import MlflowTracker
from dflash_pipeline.training.distributed import process_group
from dflash_pipeline.training.event_log import EventLog
from dflash_pipeline.training.loop import Outcome, Trainer
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.tracker import EndStatus, NullTracker, Params, Tracker

STOPPED = 143
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


class Trackers:
    """Tells several trackers in turn: the event log on disk first, MLflow after it."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def start(self, params: Params) -> None:
        for tracker in self.trackers:
            tracker.start(params)

    def step(self, record: StepRecord) -> None:
        for tracker in self.trackers:
            tracker.step(record)

    def epoch(self, record: EpochRecord) -> None:
        for tracker in self.trackers:
            tracker.epoch(record)

    def spike(self, record: SpikeRecord) -> None:
        for tracker in self.trackers:
            tracker.spike(record)

    def sync(self) -> None:
        for tracker in self.trackers:
            tracker.sync()

    def end(self, status: EndStatus) -> None:
        for tracker in self.trackers:
            tracker.end(status)


class PipesLog:
    """Tells Dagster: one log line an epoch or spike."""

    def __init__(self, pipes: PipesContext) -> None:
        self.pipes = pipes

    def start(self, params: Params) -> None:
        self.pipes.log.info(
            f"training run {params['run']}: {params['total_steps']} steps on {params['num_ranks']} ranks"
        )

    def step(self, record: StepRecord) -> None:
        pass

    def epoch(self, record: EpochRecord) -> None:
        self.pipes.log.info(
            f"epoch {record.epoch}: {record.num_steps} steps, mean loss {record.mean_loss:.4f}, "
            f"padding efficiency {record.padding_efficiency:.3f}, {record.seconds:.1f} s"
        )

    def spike(self, record: SpikeRecord) -> None:
        self.pipes.log.warning(
            f"loss spike at step {record.global_step} (epoch {record.epoch} step {record.step}): "
            f"{record.loss:.3f} where {record.expected_loss:.3f} was expected"
        )

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        self.pipes.log.info(f"training {status}")


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
        trainer = Trainer(
            config,
            ranks=ranks,
            tracker=NullTracker(),
            attempt=record.next_attempt,
            stop_asked=lambda: stop.asked,
            board=ProgressBoard(),
        )
        if not ranks.is_first:
            return _exit_code(trainer.train())
        attempt = Attempt(
            number=record.next_attempt,
            num_ranks=world_size,
            first_step=trainer.start,
            status="running",
            last_step=trainer.start,
        )
        trainer.tracker = _trackers(config, record, attempt, stack)
        trainer.tracker.start(_params(config, trainer, attempt))
        try:
            outcome = trainer.train()
        except BaseException:
            trainer.tracker.end("failed")
            raise
        trainer.tracker.end("finished" if outcome.finished else "killed")
        return _exit_code(outcome)


def _exit_code(outcome: Outcome) -> int:
    return 0 if outcome.finished else STOPPED


class RunBook:
    """Keeps `run.json` true to an attempt: running, then finished, stopped or failed; and which MLflow run it fills."""

    def __init__(self, config: LaunchConfig, record: RunRecord, attempt: Attempt, mlflow: MlflowTracker) -> None:
        self.path = Path(config.run_dir) / "run.json"
        self.record = record
        self.attempt = attempt
        self.mlflow = mlflow
        self.reached = attempt.first_step

    def start(self, params: Params) -> None:
        self._write()

    def step(self, record: StepRecord) -> None:
        self.reached = record.global_step
        # Known only once the server has answered, which no step waits for.
        if self.record.mlflow_run_id is None and self.mlflow.run_id(wait_seconds=0) is not None:
            self._write()

    def epoch(self, record: EpochRecord) -> None:
        self._write()

    def spike(self, record: SpikeRecord) -> None:
        pass

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        ended: dict[EndStatus, AttemptStatus] = {"finished": "finished", "failed": "failed", "killed": "stopped"}
        self.attempt = replace(self.attempt, status=ended[status])
        fault_point("run.before-end")
        self._write()
        fault_point("run.after-end")

    def _write(self) -> None:
        self.attempt = replace(self.attempt, last_step=self.reached)
        self.record = self.record.with_attempt(self.attempt)
        if run_id := self.mlflow.run_id(wait_seconds=0):
            self.record = self.record.with_mlflow_run(run_id)
        save_record(self.path, self.record)


def _record(config: LaunchConfig) -> RunRecord:
    path = Path(config.run_dir) / "run.json"
    if path.exists():
        return load_record(path, RunRecord)
    total = load_plan(Path(config.plan_dir), config.plan).total_steps
    return RunRecord(run=config.run, plan=config.plan, target=config.target, total_steps=total)


def _trackers(config: LaunchConfig, record: RunRecord, attempt: Attempt, stack: ExitStack) -> Trackers:
    mlflow = MlflowTracker(
        config.tracking_uri,
        config.experiment,
        artifact_location=config.artifact_location,
        run_id=record.mlflow_run_id,
        run_name=f"{config.experiment}-{Path(config.run_dir).name}",
        end_wait_seconds=END_WAIT_SECONDS,
        tags={"dflash.run": config.run, "dflash.run_dir": config.run_dir},
    )
    trackers: list[Tracker] = [EventLog(Path(config.run_dir) / "events.jsonl"), mlflow]
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
        "block_size": config.drafter.block_size,
        "num_layers": config.drafter.num_layers,
        "tap_layer_ids": ",".join(str(i) for i in config.drafter.tap_layer_ids),
        "learning_rate": settings.learning_rate,
        "warmup_fraction": settings.warmup_fraction,
        "anchors_per_sample": settings.anchors_per_sample,
        "decay": settings.decay,
        "num_ranks": attempt.num_ranks,
        "first_step": attempt.first_step,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
