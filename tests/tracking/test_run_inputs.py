"""What MLflow's own pages know of a run: its dataset, its alarms, the facts of code and machine, and its forensics."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from dflash_pipeline.contracts.events import AlarmRecord, VerdictRecord
from dflash_pipeline.launch.run_facts import git_facts, more_settings, run_facts
from dflash_pipeline.tracking.forensics_artifact import keep_pages
from dflash_pipeline.tracking.run_inputs import snapshot_input
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri
from dflash_pipeline.training.settings import Sharding
from tests.tracking.logged_run import LoggedRun
from tests.tracking.training_records import step
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import write_toy


@pytest.fixture
def client(storage):
    return MlflowClient(tracking_uri(storage))


def logged(storage, folder, records, **options):
    run = LoggedRun(tracking_uri(storage), folder, artifact_location=artifact_location(storage), **options)
    run.start({"snapshot": "4be1c0d2", "plan": "p", "num_epochs": 2})
    for record in records:
        run.tell(record)
    run.end("finished")
    return run.run_id


def alarm(number, cause="loader starving"):
    return AlarmRecord(
        global_step=number, epoch=0, step=number - 1, cause=cause, message=f"look at {number}", value=0.3, limit=0.2
    )


def test_the_snapshot_is_one_dataset_however_often_the_run_is_taken_up(storage, client, tmp_path):
    first = logged(storage, tmp_path / "r1", [step(1)])
    assert logged(storage, tmp_path / "r1", [step(2, attempt=2)], run_id=first) == first
    other = logged(storage, tmp_path / "r2", [step(1)])
    [input_] = client.get_run(first).inputs.dataset_inputs
    assert (input_.dataset.name, input_.dataset.digest) == ("drafters/snapshot", "4be1c0d2")
    assert json.loads(input_.dataset.profile) == {"plan": "p", "num_epochs": "2"}
    assert [(tag.key, tag.value) for tag in input_.tags] == [("mlflow.data.context", "training")]
    assert client.get_run(other).inputs.dataset_inputs[0].dataset.digest == "4be1c0d2"
    assert snapshot_input("r", {}) is None


def test_alarms_and_verdict_are_on_the_runs_page(storage, client, tmp_path):
    verdict = VerdictRecord(global_step=9, epoch=0, limit="data", share=0.5, sentence="data it is")
    records = [step(1), alarm(4), alarm(7, "disk low"), alarm(9), verdict]
    run = client.get_run(logged(storage, tmp_path / "run", records))
    assert run.data.tags["alarm.loader starving"] == "step 9: look at 9"
    assert run.data.tags["alarm.disk low"] == "step 7: look at 7"
    assert run.data.tags["alarms"] == "loader starving at step 9, disk low at step 7, loader starving at step 4"
    assert run.data.tags["last_verdict"] == "data it is"
    points = client.get_metric_history(run.info.run_id, "alarm/loader-starving")
    assert sorted((point.step, point.value) for point in points) == [(4, 1.0), (9, 1.0)]


def test_pages_are_artifacts_and_take_the_place_of_earlier_ones(storage, client, tmp_path):
    run_id = logged(storage, tmp_path / "run", [step(1)])
    for text in ("before", "<p>after</p>"):
        assert keep_pages(tracking_uri(storage), run_id, {"event-1.html": text})
    [found] = client.list_artifacts(run_id, "forensics")
    assert found.path == "forensics/event-1.html"
    path = client.download_artifacts(run_id, found.path, str(tmp_path))
    assert open(path).read() == "<p>after</p>"  # noqa: PTH123, SIM115


def test_a_server_that_is_away_is_no_fault_of_the_training(tmp_path):
    assert not keep_pages("http://127.0.0.1:9", "nothing", {"a.html": "x"})


def test_facts_are_those_of_the_code_and_its_packages(tmp_path):
    config = replace(write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=1), recipe="abc")
    facts = run_facts(config)
    assert facts["recipe.digest"] == "abc"
    assert facts["version.torch"].startswith("2.")
    assert facts["host.cores"] >= 1
    assert all("." in name for name in facts)
    sharded = replace(config, sharding=Sharding(drafter="fsdp"))
    assert {n for n, v in more_settings(sharded).items() if v != more_settings(config)[n]} == {"drafter_sharding"}


def test_the_revision_of_a_checkout_and_whether_it_was_changed(tmp_path):
    assert git_facts(tmp_path / "nowhere") == {}

    def git(*arguments):
        options = ["-c", "user.name=n", "-c", "user.email=e@e"]
        subprocess.run(["git", "-C", str(tmp_path), *options, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    (tmp_path / "beside").write_text("not part of it")
    facts = git_facts(tmp_path)
    assert len(facts["git.revision"]) == 40
    assert facts["git.dirty"] is False
    (tmp_path / "file").write_text("b")
    assert git_facts(tmp_path)["git.dirty"] is True
