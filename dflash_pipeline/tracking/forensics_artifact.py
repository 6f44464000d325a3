"""A run's forensics beside its curves: pages as artifacts of the MLflow run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mlflow import MlflowClient

from dflash_pipeline.tracking.mlflow_runs import SERVER_FAULTS, without_password

FOLDER = "forensics"

logger = logging.getLogger(__name__)


def keep_pages(tracking_uri: str, run_id: str, pages: Mapping[str, str]) -> bool:
    """Put pages into the run's artifacts, by name, in place of those it has. Never raises for the server."""
    client = MlflowClient(tracking_uri)
    try:
        for name, page in pages.items():
            client.log_text(run_id, page, f"{FOLDER}/{name}")
    except SERVER_FAULTS as fault:
        logger.warning("MLflow did not take the pages of %s: %s", run_id, without_password(fault))
        return False
    return True
