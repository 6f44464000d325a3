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
    "early": "KILLED",
    "failed": "FAILED",
    "killed": "KILLED",
}

ATTEMPTS, SPOOL = "attempts", "dflash.spool"
"""Tags of a run: how often it was opened, and whose event log it is filled from."""

SERVER_FAULTS = (MlflowException, requests.RequestException, SQLAlchemyError, OSError, json.JSONDecodeError)
"""What a server that is down, slow, full or behind a broken proxy raises."""

ANSWER_SECONDS = 15.0
NO_ANSWER_OF_ITS_OWN = (401, 403, 408, 429)
"""Not signed in, not allowed yet, too slow, too many: the same request may be taken later."""

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTemplate:
    """What a new run is made from."""

    tracking_uri: str
    experiment: str
    artifact_location: str | None
    """None: where the server keeps them."""
    run_name: str
    tags: dict[str, str]
    started_ms: int
    """When the work began: making a new database, and so the run, takes seconds of a short training."""


def ensure_experiment(tracking_uri: str, name: str, artifact_location: str | None) -> str:
    """The experiment's id; made if absent, brought back if deleted. The first call on a new database takes seconds."""
    if tracking_uri.startswith("sqlite:///"):
        Path(tracking_uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri)
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=artifact_location)
        except MlflowException:
            # Another process may have made it at this moment; what a server says then differs from store to store.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def create_run(template: RunTemplate, spool: str) -> str:
    """A new run in state RUNNING, and its id."""
    uri = template.tracking_uri
    experiment_id = ensure_experiment(uri, template.experiment, template.artifact_location)
    tags = {**template.tags, SPOOL: spool}
    run = MlflowClient(uri).create_run(
        experiment_id, start_time=template.started_ms, run_name=template.run_name, tags=tags
    )
    return str(run.info.run_id)


def find_spooled_run(template: RunTemplate, spool: str) -> str | None:
    """The run that was made for this event log, if there is one."""
    uri = template.tracking_uri
    experiment_id = ensure_experiment(uri, template.experiment, template.artifact_location)
    found = MlflowClient(uri).search_runs([experiment_id], filter_string=f"tags.`{SPOOL}` = '{spool}'", max_results=1)
    return str(found[0].info.run_id) if found else None


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

    return answer_in_time(read, "read the status of a run")


def repair_status(tracking_uri: str, run_id: str, status: EndStatus) -> bool:
    """Ends a run that a killed rank left RUNNING. True if that was needed and done; never raises for the server."""

    def repair() -> bool:
        run = find_run(tracking_uri, run_id)
        if run is None or run.info.status not in ("RUNNING", "SCHEDULED"):
            return False
        MlflowClient(tracking_uri).set_terminated(run_id, STATUS[status])
        return True

    return bool(answer_in_time(repair, "end a run"))


def is_refusal(fault: Exception) -> bool:
    """Whether the server understood and will not: the same request again would be refused again."""
    if not isinstance(fault, MlflowException):
        return False
    code = int(fault.get_http_status_code())
    return 400 <= code < 500 and code not in NO_ANSWER_OF_ITS_OWN


def without_password(text: object) -> str:
    """For logs: an address may carry a user and a password."""
    return re.sub(r"//[^/@\s]*@", "//", str(text))


def answer_in_time(call: Callable[[], Answer], what: str) -> Answer | None:
    """What a call to the server gives; None, and a warning, when it fails or takes longer than `ANSWER_SECONDS`."""
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
