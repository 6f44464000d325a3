"""`dflash sync`: bring a run's MLflow page up to what the run's event log holds, after a time without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.layout import open_storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.spool import send_missing
from dflash_pipeline.tracking.store_uri import tracking_uri


def sync_run(run: str, storage_dir: Path) -> dict[str, Any]:
    """What was sent. A run that never reached MLflow is refused: training it again, even to no step, opens one."""
    storage = open_storage(storage_dir)
    run_dir = storage.runs / run
    if "/" in run or not (run_dir / "run.json").exists():
        raise Refused(
            "there is no such run", where=str(run_dir), fix="name a folder of runs/, for example as `ls` shows it"
        )
    record = load_record(run_dir / "run.json", RunRecord)
    if record.mlflow_run_id is None:
        raise Refused(
            "this run has no MLflow run", where=str(run_dir), fix="start the same recipe again with the server up"
        )
    sent = send_missing(run_dir / "events.jsonl", tracking_uri=tracking_uri(storage.root), run_id=record.mlflow_run_id)
    return {"run": run, "mlflow_run_id": record.mlflow_run_id, "points": sent.num_points, "params": sent.num_params}
