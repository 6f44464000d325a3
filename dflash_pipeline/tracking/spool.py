"""Sends MLflow what a run's event log has and the run lacks: after a time without a server, or with a slow one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.events import StepRecord
from dflash_pipeline.tracking.mlflow_runs import SERVER_FAULTS, find_run, without_password
from dflash_pipeline.tracking.points import Counts, Point, points_of
from dflash_pipeline.tracking.sender import METRICS_A_CALL, PARAMS_A_CALL
from dflash_pipeline.training.event_json import as_record
from dflash_pipeline.training.event_log import read_events


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
        record = as_record(event)
        if record is None:
            continue
        if isinstance(record, StepRecord):
            # An attempt that starts again at a checkpoint counts on from there.
            counts_at[record.global_step] = counts_at.get(record.global_step - 1, Counts()).after(record)
        counts = counts_at.get(record.global_step, Counts())
        yield from ((point, milliseconds) for point in points_of(record, counts))


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
