"""Whom the first rank tells: the event log, MLflow, Dagster's log, and the run's own record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dagster_pipes import PipesContext

from dflash_pipeline.contracts.events import (
    AcceptanceRecord,
    AlarmRecord,
    AttemptRecord,
    EpochRecord,
    Record,
    SpikeRecord,
    StepRecord,
    VerdictRecord,
)
from dflash_pipeline.contracts.run import Attempt, AttemptStatus, RunRecord
from dflash_pipeline.faults import fault_point
from dflash_pipeline.store.records import save_record
from dflash_pipeline.tracking.mlflow_tracker import MlflowTracker
from dflash_pipeline.training.progress_text import progress_text
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.tracker import EndStatus, Params, Tracker

SAY_SECONDS, SAY_SHARE = 300.0, 0.05
"""Of training, and of the run's cost: how often Dagster's log says how far the run is, whichever comes first."""


class Trackers:
    """Tells several trackers in turn: the event log on disk first, MLflow after it. Tells at the end what that took."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)
        self._last: StepRecord | None = None
        self._num_steps = 0
        self._seconds = self._tracker_seconds = self._longest = 0.0

    def start(self, params: Params) -> None:
        for tracker in self.trackers:
            tracker.start(params)

    def tell(self, record: Record) -> None:
        with self._timed():
            for tracker in self.trackers:
                tracker.tell(record)
        if isinstance(record, StepRecord):
            self._last = record
            self._num_steps += 1
            self._seconds += record.seconds

    def sync(self) -> None:
        with self._timed():
            for tracker in self.trackers:
                tracker.sync()

    def end(self, status: EndStatus) -> None:
        if self._last is not None:
            self.tell(self._cost(self._last))
        for tracker in self.trackers:
            tracker.end(status)

    def _cost(self, last: StepRecord) -> AttemptRecord:
        return AttemptRecord(
            global_step=last.global_step,
            attempt=last.attempt,
            num_steps=self._num_steps,
            seconds=self._seconds,
            tracker_seconds=self._tracker_seconds,
            longest_tracker_seconds=self._longest,
        )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._tracker_seconds += seconds
        self._longest = max(self._longest, seconds)


class PipesLog:
    """Tells Dagster: one log line an epoch, spike, alarm or measured acceptance, and now and then how far it is."""

    def __init__(self, pipes: PipesContext) -> None:
        self.pipes = pipes
        self._num_epochs = 0
        self._said_share = 0.0
        self._seconds_since = 0.0

    def start(self, params: Params) -> None:
        self._num_epochs = int(params["num_epochs"])
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
                log.warning(f"alarm, {record.cause}, at step {record.global_step}: {record.message}")
            case VerdictRecord():
                log.info(f"epoch {record.epoch}: {record.sentence}")
            case AcceptanceRecord():
                log.info(
                    f"acceptance length {record.mean:.2f} ({record.low:.2f} to {record.high:.2f}) after step "
                    f"{record.global_step}, on {record.num_prompts} prompts"
                )
            case AttemptRecord():
                log.info(
                    f"event log and MLflow took {record.tracker_seconds:.2f} s of {record.seconds:.1f} s, "
                    f"the longest call {record.longest_tracker_seconds:.3f} s"
                )
            case StepRecord():
                self._say_how_far(record)

    def _say_how_far(self, record: StepRecord) -> None:
        self._seconds_since += record.seconds
        if self._seconds_since >= SAY_SECONDS or record.run_cost_fraction >= self._said_share + SAY_SHARE:
            self._seconds_since, self._said_share = 0.0, record.run_cost_fraction
            self.pipes.log.info(progress_text(record, num_epochs=self._num_epochs))

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        told: dict[EndStatus, str] = {
            "finished": "finished",
            "limited": "stopped at training.max_steps",
            "early": "stopped early, by its acceptance length",
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
            "early": "stopped",
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
