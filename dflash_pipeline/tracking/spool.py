"""Sends MLflow what a run's event log has and the run lacks: after a time without a server, or with a slow one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.events import EpochRecord, StepRecord
from dflash_pipeline.tracking.mlflow_runs import SERVER_FAULTS, find_run, without_password
from dflash_pipeline.tracking.points import Counts, Point, epoch_points, step_points
from dflash_pipeline.tracking.sender import METRICS_A_CALL, PARAMS_A_CALL
from dflash_pipeline.training.event_log import read_events

Record = TypeVar("Record", StepRecord, EpochRecord)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What `send_missing` found to send."""

    num_points: int
    num_params: int


def send_missing(events: Path, *, tracking_uri: str, run_id: str) -> Sent:
    """Brings an existing run up to its event log. Called again it finds nothing to send."""
    try:
        return _send_missing(read_events(events), tracking_uri, run_id)
    except SERVER_FAULTS as fault:
        raise Failed(
            f"MLflow did not take it: {without_password(fault)}",
            where=without_password(tracking_uri),
            fix="see that the server answers, and send again: what has arrived is not sent twice",
        ) from fault


def timed_points(events: Sequence[dict[str, Any]]) -> Iterator[tuple[Point, int]]:
    """Every point of every attempt with its time in milliseconds, in the order of the events."""
    counts_at: dict[int, Counts] = {}
    for event in events:
        milliseconds = int(event["unix_seconds"] * 1000)
        if event["kind"] == "step":
            record = _record(event, StepRecord)
            # An attempt that starts again at a checkpoint counts on from there.
            counts = counts_at.get(record.global_step - 1, Counts()).after(record)
            counts_at[record.global_step] = counts
            yield from ((point, milliseconds) for point in step_points(record, counts))
        elif event["kind"] == "epoch":
            yield from ((point, milliseconds) for point in epoch_points(_record(event, EpochRecord)))


def _send_missing(events: Sequence[dict[str, Any]], tracking_uri: str, run_id: str) -> Sent:
    run = find_run(tracking_uri, run_id)
    if run is None:
        raise Refused("no such run", where=f"MLflow run {run_id}", fix="give the id of a run that was not deleted")
    client = MlflowClient(tracking_uri)
    points = list(timed_points(events))
    present = {
        (key, row.step, row.value)
        for key in {point.key for point, _ in points}
        for row in client.get_metric_history(run_id, key)
    }
    metrics = []
    for point, milliseconds in points:
        if (point.key, point.step, point.value) not in present:
            present.add((point.key, point.step, point.value))
            metrics.append(Metric(point.key, point.value, milliseconds, point.step))
    params = {name: str(value) for event in reversed(events) for name, value in event.get("params", {}).items()}
    new = [Param(name, value) for name, value in params.items() if name not in run.data.params]
    for start in range(0, len(new), PARAMS_A_CALL):
        client.log_batch(run_id, params=new[start : start + PARAMS_A_CALL], synchronous=True)
    for start in range(0, len(metrics), METRICS_A_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + METRICS_A_CALL], synchronous=True)
    return Sent(num_points=len(metrics), num_params=len(new))


def _record(event: dict[str, Any], kind: type[Record]) -> Record:
    # The log writes what is not finite as null.
    values: dict[str, Any] = {field.name: event[field.name] for field in fields(kind)}
    values |= {name: math.nan for name, value in values.items() if value is None}
    return kind(**values)
