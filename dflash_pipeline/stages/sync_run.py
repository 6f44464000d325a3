"""`dflash sync`: bring a run's MLflow page up to what the run's event log holds, after a time without a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.stages.run_files import run_folder
from dflash_pipeline.store.layout import open_storage
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.tracking.mlflow_runs import RunTemplate
from dflash_pipeline.tracking.replay import End, replay
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT
from dflash_pipeline.training.event_log import each_event
from dflash_pipeline.training.run_page import page_name, page_tags
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.step_table import STEP_TABLE, write_step_table


def sync_run(run: str, storage_dir: Path) -> dict[str, Any]:
    """What was sent, to the server that the run was launched with. A run that never reached it is made there.

    `steps.parquet` is made again on the way.
    """
    storage = open_storage(storage_dir)
    run_dir = run_folder(storage, run)
    if not (run_dir / "run.json").exists():
        raise Refused("this run never started", where=str(run_dir), fix="start it again")
    record, config = load_record(run_dir / "run.json", RunRecord), load_record(run_dir / "launch.json", LaunchConfig)
    events, table = run_dir / "events.jsonl", run_dir / STEP_TABLE
    began = next((event["unix_seconds"] for event in each_event(events)), None)
    if began is None:
        raise Refused("the run's event log is empty", where=str(events), fix="start the run again")
    os.environ.update(CLIENT_ENVIRONMENT)  # MLflow's client reads its own settings there.
    write_step_table(events, table)
    template = RunTemplate(
        tracking_uri=config.tracking_uri,
        experiment=config.experiment,
        artifact_location=config.artifact_location,
        run_name=page_name(config),
        tags=page_tags(config),
        started_ms=int(began * 1000),
    )
    sent = replay(run_dir, template, run_id=record.mlflow_run_id, end=_ended(events), files=(table,))
    if sent.mlflow_run_id != record.mlflow_run_id:
        save_record(run_dir / "run.json", record.with_mlflow_run(sent.mlflow_run_id))
    return {
        "run": run_dir.name,
        "mlflow_run_id": sent.mlflow_run_id,
        "points": sent.sent.num_points,
        "params": sent.sent.num_params,
    }


def _ended(events: Path) -> End | None:
    """How and when the newest attempt ended; None when its log has no end: it goes on, or was killed."""
    end: End | None = None
    for event in each_event(events):
        if event["kind"] == "start":
            end = None
        elif event["kind"] == "end":
            end = End(status=event["status"], unix_milliseconds=int(event["unix_seconds"] * 1000))
    return end
