from __future__ import annotations

from pathlib import Path

import pytest

from dflash_pipeline.tracking.mlflow_runs import ensure_experiment
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT, artifact_location, tracking_uri


@pytest.fixture(autouse=True)
def client_environment(monkeypatch: pytest.MonkeyPatch):
    for name, value in CLIENT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One MLflow database for all tests here: a new one takes seconds. Its experiment is `drafters`."""
    storage = tmp_path_factory.mktemp("my storage 100%")
    ensure_experiment(tracking_uri(storage), "drafters", artifact_location(storage))
    return storage
