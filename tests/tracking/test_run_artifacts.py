"""A report is put on its run's page once, and a server that is down costs a warning."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import unquote

import pytest
from mlflow import MlflowClient

from dflash_pipeline.tracking import mlflow_runs
from dflash_pipeline.tracking.run_artifacts import log_report
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri

FILES = {"acceptance/a.png": b"\x89PNG", "acceptance/a.json": b"{}"}


@pytest.fixture
def server(storage: Path) -> tuple[str, str]:
    uri = tracking_uri(storage)
    experiment = mlflow_runs.ensure_experiment(uri, "acceptance", artifact_location(storage))
    return uri, MlflowClient(uri).create_run(experiment).info.run_id


def test_figures_and_files_are_put_once(server):
    uri, run_id = server
    client = MlflowClient(uri)
    for value in (2.5, 2.5, 3.0):
        assert log_report(uri, run_id, metrics={"report/acceptance": value}, files=FILES)
    history = client.get_metric_history(run_id, "report/acceptance")
    assert [row.value for row in history] == [2.5, 3.0]
    folder = Path(unquote(client.get_run(run_id).info.artifact_uri.removeprefix("file://")))
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("wrong", ["no server", "no run"])
def test_a_server_that_does_not_take_it_is_warned_of(server, caplog, wrong):
    uri, run_id = ("http://127.0.0.1:9", server[1]) if wrong == "no server" else (server[0], "gone")
    with caplog.at_level(logging.WARNING):
        assert not log_report(uri, run_id, metrics={"report/acceptance": 1.0}, files=FILES)
    assert "could not put the acceptance report" in caplog.text
