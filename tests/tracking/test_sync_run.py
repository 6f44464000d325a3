"""`dflash sync`: from a run's folder alone to its page, wherever it was launched to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.stages.sync_run import sync_run
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.tracking.mlflow_runs import run_status, values_by_step
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri
from dflash_pipeline.training.event_log import EventLog
from tests.tracking.training_records import step
from tests.training.toy_run import write_toy


@pytest.fixture
def run(storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run that no server ever heard of; its folder is named after the test's."""
    monkeypatch.delenv("DFLASH_STORAGE", raising=False)
    spec = BatchingSpec(strategy="sorted", token_budget=64, slots_per_step=1, boundaries=(32,))
    toy = write_toy(tmp_path / "toy", lengths=(20, 30), spec=spec, epochs=1)
    folder = storage / "runs" / tmp_path.name
    uri = tracking_uri(storage)
    config = replace(
        toy, run=folder.name, run_dir=str(folder), experiment="drafters", tracking_uri=uri, artifact_location=None
    )
    save_record(folder / "launch.json", config)
    save_record(folder / "run.json", RunRecord(run=folder.name, plan="p", target="t", total_steps=5))
    log = EventLog(folder / "events.jsonl")
    log.start({"seed": 7})
    for number in range(1, 6):
        log.tell(step(number))
    return folder


def test_a_run_that_no_server_heard_of_gets_its_page(storage: Path, run: Path):
    EventLog(run / "events.jsonl").end("finished")
    uri = tracking_uri(storage)
    sent = sync_run(run.name, storage)
    run_id = sent["mlflow_run_id"]
    assert load_record(run / "run.json", RunRecord).mlflow_run_id == run_id
    assert (sent["points"], sent["params"]) == (5 * 33, 1)
    assert list(values_by_step(uri, run_id, "train/loss")) == [1, 2, 3, 4, 5]
    assert run_status(uri, run_id) == "FINISHED"
    page = MlflowClient(uri).get_run(run_id)
    assert (page.info.run_name, page.data.tags["dflash.run"]) == (f"drafters-{run.name}", run.name)
    assert page.info.artifact_uri.startswith(artifact_location(storage))
    assert [file.path for file in MlflowClient(uri).list_artifacts(run_id)] == ["steps.parquet"]
    assert pq.read_table(run / "steps.parquet")["global_step"].to_pylist() == [1, 2, 3, 4, 5]
    assert sync_run(run.name, storage) == sent | {"points": 0, "params": 0}


def test_a_run_without_an_end_is_left_as_it_is(storage: Path, run: Path):
    sent = sync_run(run.name, storage)
    assert run_status(tracking_uri(storage), sent["mlflow_run_id"]) == "RUNNING"


@pytest.mark.parametrize("name", ["none", "../runs/none", "a/b"])
def test_what_is_no_run_is_refused(storage: Path, run: Path, name: str):
    with pytest.raises(Refused, match="no such run"):
        sync_run(name, storage)
