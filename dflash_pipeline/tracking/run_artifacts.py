"""What is found out about a run after it ended: figures and files for its page. The server's faults only warn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from dflash_pipeline.tracking.mlflow_runs import answer_in_time


def log_report(tracking_uri: str, run_id: str, *, metrics: Mapping[str, float], files: Mapping[str, bytes]) -> bool:
    """Put figures and files on a run's page, files by their path there. Never raises for the server.

    Figures that the page shows already are not told again, and then no file is sent either. True when the page has all.
    """

    def put() -> bool:
        client = MlflowClient(tracking_uri)
        shown = client.get_run(run_id).data.metrics
        if all(shown.get(key) == value for key, value in metrics.items()):
            return True
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder) / Path(name).name
                path.write_bytes(content)
                client.log_artifact(run_id, str(path), str(Path(name).parent))
        # Last, since they say that the files are there.
        now = int(time.time() * 1000)
        client.log_batch(run_id, metrics=[Metric(key, value, now, 0) for key, value in metrics.items()])
        return True

    return bool(answer_in_time(put, "put the acceptance report on the run's page"))
