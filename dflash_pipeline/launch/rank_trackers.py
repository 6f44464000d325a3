"""Whom the first rank tells: the event log, MLflow, Dagster's log, and the run's own record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dagster_pipes import PipesContext

from dflash_pipeline.contracts.events import AcceptanceRecord, AlarmRecord, EpochRecord, Record, SpikeRecord, StepRecord
from dflash_pipeline.contracts.run import Attempt, AttemptStatus, RunRecord
from dflash_pipeline.faults import fault_point
from dflash_pipeline.store.records import save_record
from dflash_pipeline.tracking.mlflow_tracker import MlflowTracker
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.tracker import EndStatus, Params, Tracker


class Trackers:
    """Tells several trackers in turn: the event log on disk first, MLflow after it."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def start(self, params: Params) -> None:
        for tracker in self.trackers:
            tracker.start(params)

    def tell(self, record: Record) -> None:
        for tracker in self.trackers:
            tracker.tell(record)

    def sync(self) -> None:
        for tracker in self.trackers:
            tracker.sync()

    def end(self, status: EndStatus) -> None:
        for tracker in self.trackers:
            tracker.end(status)


class PipesLog:
    """Tells Dagster: one log line an epoch, spike, alarm or measured acceptance."""

    def __init__(self, pipes: PipesContext) -> None:
        self.pipes = pipes

    def start(self, params: Params) -> None:
        self.pipes.log.info(
            f"training run {params['run']}: {params['total_steps']} steps on {params['num_ranks']} ranks"
        )

    def tell(self, record: Record) -> None:
        log = self.pipes.log
        match record:
            case EpochRecord():
                log.info(
                    f"epoch {record.epoch}: {record.num_steps} steps, mean loss {record.mean_loss:.4f}, "
                    f"padding efficiency {record.padding_efficiency:.3f}, {record.seconds:.1f} s"
                )
            case SpikeRecord():
                what = "slow rise of the loss" if record.rule == "slow rise" else "loss spike"
                log.warning(
                    f"{what} at step {record.global_step} (epoch {record.epoch} step {record.step}): "
                    f"{record.loss:.3f} where {record.expected_loss:.3f} was expected"
                )
            case AlarmRecord():
                log.warning(f"alarm, {record.kind}, at step {record.global_step}: {record.message}")
            case AcceptanceRecord():
                log.info(
                    f"acceptance length {record.mean:.2f} ({record.low:.2f} to {record.high:.2f}) after step "
                    f"{record.global_step}, on {record.num_prompts} prompts"
                )
            case StepRecord():
                pass

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        told: dict[EndStatus, str] = {
            "finished": "finished",
            "limited": "stopped at training.max_steps",
            "failed": "failed",
            "killed": "stopped on request",
        }
        self.pipes.log.info(f"training {told[status]}")


class RunBook:
    """Keeps `run.json` true to an attempt: running, then finished, stopped or failed; and which MLflow run it fills."""

    def __init__(self, config: LaunchConfig, record: RunRecord, attempt: Attempt, mlflow: MlflowTracker) -> None:
        self.path = Path(config.run_dir) / "run.json"
        self.record = record
        self.attempt = attempt
        self.mlflow = mlflow
        self.reached = attempt.first_step

    def start(self, params: Params) -> None:
        fault_point("run.before-start")
        self._write()
        fault_point("run.after-start")

    def tell(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self.reached = record.global_step
        # The MLflow run is known only once the server has answered, which no step waits for.
        unknown = self.record.mlflow_run_id is None and self.mlflow.run_id(wait_seconds=0) is not None
        if unknown or isinstance(record, EpochRecord):
            self._write()

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        ended: dict[EndStatus, AttemptStatus] = {
            "finished": "finished",
            "limited": "stopped",
            "failed": "failed",
            "killed": "stopped",
        }
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
