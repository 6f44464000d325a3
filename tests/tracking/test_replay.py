"""`replay`: what a run's page lacks is sent, nothing twice, and a run that no server ever saw is made."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.tracking.mlflow_runs import RunTemplate, ensure_experiment, run_status, values_by_step
from dflash_pipeline.tracking.replay import End, replay
from dflash_pipeline.tracking.spool import MARK, Sent
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.event_log import EventLog
from tests.tracking.training_records import epoch, step

ENDED = End(status="finished", unix_milliseconds=2_000_000_000_000)


def template(uri: str) -> RunTemplate:
    return RunTemplate(
        tracking_uri=uri, experiment="drafters", artifact_location=None, run_name="a run", tags={}, started_ms=1
    )


def write_two_attempts(run_dir: Path) -> None:
    log = EventLog(run_dir / "events.jsonl")
    log.start({"seed": 7, "strategy": "bucket"})
    for number in range(1, 11):
        log.tell(step(number, loss=math.inf if number == 9 else 3.0 / number, spike=number == 3))
    log.tell(epoch(10))
    log.end("failed")
    log = EventLog(run_dir / "events.jsonl")
    log.start({"seed": 7, "strategy": "window"})
    for number in range(9, 12):
        log.tell(step(number, attempt=2, loss=0.25))
    log.end("finished")


def test_a_run_that_no_server_saw_is_made_and_filled(storage: Path, tmp_path: Path):
    write_two_attempts(tmp_path)
    uri = tracking_uri(storage)
    found = replay(tmp_path, template(uri), run_id=None, end=ENDED)
    run_id = found.mlflow_run_id
    assert found.sent.num_params == 2
    losses = MlflowClient(uri).get_metric_history(run_id, "train/loss")
    assert sorted(row.step for row in losses) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11]
    assert values_by_step(uri, run_id, "train/loss") == {n: 3.0 / n if n < 9 else 0.25 for n in range(1, 12)}
    assert values_by_step(uri, run_id, "loss/nonfinite")[11] == 0
    assert values_by_step(uri, run_id, "spike/count")[11] == 1
    run = MlflowClient(uri).get_run(run_id)
    assert (run.data.tags["attempts"], run.data.tags["attempt.2.strategy"]) == ("2", "window")
    assert run.data.tags["attempt.2.first_step"] == "9"
    assert run_status(uri, run_id) == "FINISHED"
    again = replay(tmp_path, template(uri), run_id=run_id, end=ENDED)
    assert (again.mlflow_run_id, again.sent) == (run_id, Sent())


def test_what_the_page_lost_after_it_was_sent_is_found_missing(storage: Path, tmp_path: Path):
    """The mark says that all has arrived, and it has not: as of a server that was put back to an older state."""
    write_two_attempts(tmp_path)
    uri = tracking_uri(storage)
    run_id = replay(tmp_path, template(uri), run_id=None, end=None).mlflow_run_id
    experiment = ensure_experiment(uri, "drafters", None)
    other = MlflowClient(uri).create_run(experiment).info.run_id
    mark = json.loads((tmp_path / MARK).read_text())
    assert mark["mlflow_run_id"] == run_id
    assert mark["offset"] == (tmp_path / "events.jsonl").stat().st_size
    (tmp_path / MARK).write_text(json.dumps(mark | {"mlflow_run_id": other}))
    assert replay(tmp_path, template(uri), run_id=other, end=None).sent.num_points > 300
    assert values_by_step(uri, other, "train/loss") == values_by_step(uri, run_id, "train/loss")
    assert run_status(uri, other) == "RUNNING"


def test_a_run_keeps_the_time_it_ended_at_however_late_and_often_it_is_sent(storage: Path, tmp_path: Path):
    write_two_attempts(tmp_path)
    uri = tracking_uri(storage)
    run_id = replay(tmp_path, template(uri), run_id=None, end=ENDED).mlflow_run_id
    replay(tmp_path, template(uri), run_id=run_id, end=ENDED)
    info = MlflowClient(uri).get_run(run_id).info
    assert (info.status, info.end_time) == ("FINISHED", ENDED.unix_milliseconds)


def test_a_clock_put_back_between_attempts_does_not_bring_old_values_back(storage: Path, tmp_path: Path):
    write_two_attempts(tmp_path)
    events = tmp_path / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    second = next(n for n, line in enumerate(lines) if n and line["kind"] == "start")
    moved = [line | {"unix_seconds": 5.0 if n >= second else line["unix_seconds"]} for n, line in enumerate(lines)]
    events.write_text("".join(json.dumps(line) + "\n" for line in moved))
    uri = tracking_uri(storage)
    run_id = replay(tmp_path, template(uri), run_id=None, end=None).mlflow_run_id
    assert values_by_step(uri, run_id, "train/loss")[10] == 0.25


def test_a_server_that_does_not_answer_is_said_and_nothing_is_marked(tmp_path: Path):
    write_two_attempts(tmp_path)
    with pytest.raises(Failed, match="send again") as failure:
        replay(tmp_path, template("http://127.0.0.1:9"), run_id=None, end=ENDED)
    assert "127.0.0.1:9" in str(failure.value)
    assert json.loads((tmp_path / MARK).read_text())["offset"] == 0
