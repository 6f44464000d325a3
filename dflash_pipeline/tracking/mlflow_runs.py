"""Experiments and runs on an MLflow server: made, taken up again, read, and put right after a rank was killed."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import requests
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from dflash_pipeline.training.tracker import EndStatus

RunStatus = Literal["RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"]
STATUS: dict[EndStatus, RunStatus] = {
    "finished": "FINISHED",
    "limited": "KILLED",  # MLflow knows no other word for a run that is to go on.
    "failed": "FAILED",
    "killed": "KILLED",
}

ATTEMPTS = "attempts"
"""Tag of a run: how often it was opened."""

SERVER_FAULTS = (MlflowException, requests.RequestException, SQLAlchemyError, OSError, json.JSONDecodeError)
"""What a server that is down, slow, full or behind a broken proxy raises."""

ANSWER_SECONDS = 15.0
REQUEST_TIMEOUT, TOO_MANY_REQUESTS = 408, 429

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTemplate:
    """What a new run is made from."""

    tracking_uri: str
    experiment: str
    artifact_location: str
    run_name: str
    tags: dict[str, str]
    started_ms: int
    """When the work began: making a new database, and so the run, takes seconds of a short training."""


def ensure_experiment(tracking_uri: str, name: str, artifact_location: str) -> str:
    """The experiment's id; made if absent, brought back if deleted. The first call on a new database takes seconds."""
    if tracking_uri.startswith("sqlite:///"):
        Path(tracking_uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri)
    found = client.get_experiment_by_name(name)
    if found is None:
        return client.create_experiment(name, artifact_location=artifact_location)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def create_run(template: RunTemplate) -> str:
    """A new run in state RUNNING, and its id."""
    uri = template.tracking_uri
    experiment_id = ensure_experiment(uri, template.experiment, template.artifact_location)
    tags = {**template.tags, ATTEMPTS: "1"}
    run = MlflowClient(uri).create_run(
        experiment_id, start_time=template.started_ms, run_name=template.run_name, tags=tags
    )
    return str(run.info.run_id)


def find_run(tracking_uri: str, run_id: str) -> Run | None:
    """The run, unless it or the database that held it was deleted."""
    try:
        run = MlflowClient(tracking_uri).get_run(run_id)
    except MlflowException as fault:
        if fault.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def values_by_step(tracking_uri: str, run_id: str, key: str) -> dict[int, float]:
    """One value a step, in order of steps: where attempts did a step again, the last one's."""
    rows = MlflowClient(tracking_uri).get_metric_history(run_id, key)
    last = {row.step: row.value for row in sorted(rows, key=lambda row: row.timestamp)}
    return dict(sorted(last.items()))


def run_status(tracking_uri: str, run_id: str) -> RunStatus | None:
    """The run's status; None when there is no such run, or no answer within `ANSWER_SECONDS`."""

    def read() -> RunStatus | None:
        run = find_run(tracking_uri, run_id)
        return None if run is None else run.info.status

    return _answer_in_time(read, "read the status of a run")


def repair_status(tracking_uri: str, run_id: str, status: EndStatus) -> bool:
    """Ends a run that a killed rank left RUNNING. True if that was needed and done; never raises for the server."""

    def repair() -> bool:
        run = find_run(tracking_uri, run_id)
        if run is None or run.info.status not in ("RUNNING", "SCHEDULED"):
            return False
        MlflowClient(tracking_uri).set_terminated(run_id, STATUS[status])
        return True

    return bool(_answer_in_time(repair, "end a run"))


def is_refusal(fault: Exception) -> bool:
    """Whether the server understood and will not: the same request again would be refused again."""
    if not isinstance(fault, MlflowException):
        return False
    code = int(fault.get_http_status_code())
    return 400 <= code < 500 and code not in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS)


def without_password(text: object) -> str:
    """For logs: an address may carry a user and a password."""
    return re.sub(r"//[^/@\s]*@", "//", str(text))


def _answer_in_time(call: Callable[[], Answer], what: str) -> Answer | None:
    # A daemon thread: MLflow's client may repeat for minutes, and neither the caller nor its exit waits for that.
    answers: list[Answer] = []
    faults: list[Exception] = []

    def work() -> None:
        try:
            answers.append(call())
        except SERVER_FAULTS as fault:
            faults.append(fault)

    thread = threading.Thread(target=work, name="mlflow-question", daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if answers:
        return answers[0]
    reason = without_password(faults[0]) if faults else f"no answer within {ANSWER_SECONDS:.0f} s"
    logger.warning("MLflow: could not %s: %s", what, reason)
    return None
