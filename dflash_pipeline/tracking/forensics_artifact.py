"""A run's forensics beside its curves: pages as artifacts of the MLflow run."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow import MlflowClient

from dflash_pipeline.tracking.mlflow_runs import answer_in_time

FOLDER = "forensics"


def keep_pages(tracking_uri: str, run_id: str, pages: Mapping[str, str]) -> bool:
    """Put pages into the run's artifacts, by name, in place of those it has. Whether that was done in time.

    Never raises for the server, nor waits for one that does not answer.
    """

    def put() -> bool:
        client = MlflowClient(tracking_uri)
        for name, page in pages.items():
            client.log_text(run_id, page, f"{FOLDER}/{name}")
        return True

    return bool(answer_in_time(put, "put the pages on loss events beside the run"))
