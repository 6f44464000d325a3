"""MLflow with a real SQLite store, and servers that fail in every way a server can."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from mlflow import MlflowClient

from dflash_pipeline.tracking import mlflow_runs
from dflash_pipeline.tracking.mlflow_runs import ensure_experiment, repair_status, run_status, values_by_step
from dflash_pipeline.tracking.mlflow_tracker import MlflowTracker
from dflash_pipeline.tracking.sender import RunSender
from dflash_pipeline.tracking.spool import Sent, send_missing
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT, artifact_location, tracking_uri
from dflash_pipeline.training.event_log import EventLog
from tests.tracking.training_records import epoch, spike, step

END_WAIT_SECONDS = 1.0


@pytest.fixture(autouse=True)
def client_environment(monkeypatch: pytest.MonkeyPatch):
    for name, value in CLIENT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One for all tests here: a new database takes seconds.
    storage = tmp_path_factory.mktemp("my storage 100%")
    ensure_experiment(tracking_uri(storage), "drafters", artifact_location(storage))
    return storage


def tracker_of(storage: Path, *, run_id: str | None = None) -> MlflowTracker:
    return MlflowTracker(
        tracking_uri(storage),
        "drafters",
        artifact_location=artifact_location(storage),
        run_id=run_id,
        run_name="a run",
        tags={"dflash.run": "0123"},
        end_wait_seconds=30.0,
    )


def remote_tracker(address: str) -> MlflowTracker:
    return MlflowTracker(
        address,
        "drafters",
        artifact_location="file:///nowhere",
        run_id=None,
        run_name="a run",
        tags={},
        end_wait_seconds=END_WAIT_SECONDS,
    )


def finished_run(storage: Path, num_steps: int) -> str:
    tracker = tracker_of(storage)
    tracker.start({"seed": 7})
    for number in range(1, num_steps + 1):
        tracker.tell(step(number))
    tracker.end("finished")
    return id_of(tracker)


def id_of(tracker: MlflowTracker) -> str:
    run_id = tracker.run_id(wait_seconds=0)
    assert run_id is not None
    return run_id


@pytest.mark.parametrize(("status", "written"), [("finished", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_a_run_ends_as_it_ended(storage: Path, status, written: str):
    tracker = tracker_of(storage)
    tracker.start({"seed": 7, "rate": 1e-3, "fill": True, "strategy": "bucket"})
    assert run_status(tracking_uri(storage), tracker.run_id(wait_seconds=20) or "") == "RUNNING"
    tracker.tell(step(1))
    tracker.end(status)
    run = MlflowClient(tracking_uri(storage)).get_run(id_of(tracker))
    assert run.info.status == written
    assert run.data.params == {"seed": "7", "rate": "0.001", "fill": "True", "strategy": "bucket"}
    assert run.data.tags["dflash.run"] == "0123"
    assert run.data.metrics["train/loss"] == 3.0


def test_every_point_arrives_against_its_step(storage: Path):
    tracker = tracker_of(storage)
    tracker.start({f"p{n}": n for n in range(230)})
    for number in range(1, 301):
        tracker.tell(step(number, spike=number in (5, 290)))
        if number == 290:
            tracker.tell(spike(290))
    tracker.tell(epoch(300))
    tracker.end("finished")
    uri, run_id = tracking_uri(storage), id_of(tracker)
    assert values_by_step(uri, run_id, "train/loss") == {n: 3.0 / n for n in range(1, 301)}
    counts = values_by_step(uri, run_id, "spike/count")
    assert (counts[4], counts[5], counts[289], counts[300]) == (0, 1, 1, 2)
    assert values_by_step(uri, run_id, "epoch/num_steps") == {300: 300}
    run = MlflowClient(uri).get_run(run_id)
    assert len(run.data.params) == 230
    assert run.data.tags["last_spike"].startswith("step 290")


def test_artifacts_go_into_the_storage_folder(storage: Path):
    run = MlflowClient(tracking_uri(storage)).get_run(finished_run(storage, 1))
    assert run.info.artifact_uri.startswith(artifact_location(storage))


def test_a_loss_that_is_no_number_is_counted_and_not_sent(storage: Path):
    tracker = tracker_of(storage)
    tracker.start({})
    for number, loss in enumerate([2.0, math.inf, -math.inf, 1.0], start=1):
        tracker.tell(step(number, loss=loss))
    tracker.end("finished")
    uri, run_id = tracking_uri(storage), id_of(tracker)
    assert values_by_step(uri, run_id, "train/loss") == {1: 2.0, 4: 1.0}
    assert values_by_step(uri, run_id, "loss/nonfinite") == {1: 0, 2: 1, 3: 2, 4: 2}


def test_a_run_is_taken_up_again(storage: Path):
    uri = tracking_uri(storage)
    first = tracker_of(storage)
    first.start({"seed": 7, "ranks": 4})
    for number in range(1, 7):
        first.tell(step(number, loss=10.0, spike=number in (2, 5)))
    first.end("failed")
    run_id = id_of(first)

    second = tracker_of(storage, run_id=run_id)
    second.start({"seed": 7, "ranks": 2, "new": 1})
    assert second.run_id(wait_seconds=20) == run_id
    assert run_status(uri, run_id) == "RUNNING"
    for number in range(4, 9):
        second.tell(step(number, attempt=2, loss=1.0, spike=number == 8))
    second.end("finished")

    run = MlflowClient(uri).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "7", "ranks": "4", "new": "1"}
    assert run.data.tags["attempt.2.ranks"] == "2"
    assert "attempt.2.seed" not in run.data.tags
    assert (run.data.tags["attempts"], run.data.tags["attempt.2.first_step"]) == ("2", "4")
    # Steps 4 to 6 were done twice. The last attempt's value is the step's, and its counts go on from step 3.
    losses = values_by_step(uri, run_id, "train/loss")
    assert list(losses.items()) == [(n, 10.0 if n < 4 else 1.0) for n in range(1, 9)]
    assert list(values_by_step(uri, run_id, "spike/count").values()) == [0, 1, 1, 1, 1, 1, 1, 2]


def test_a_run_that_is_gone_is_replaced(storage: Path, caplog: pytest.LogCaptureFixture):
    run_id = finished_run(storage, 1)
    MlflowClient(tracking_uri(storage)).delete_run(run_id)
    tracker = tracker_of(storage, run_id=run_id)
    tracker.start({"seed": 7})
    tracker.tell(step(1))
    tracker.end("finished")
    assert id_of(tracker) != run_id
    assert run_status(tracking_uri(storage), id_of(tracker)) == "FINISHED"
    assert "going on in a new one" in caplog.text


def test_a_fault_in_between_loses_nothing_and_doubles_nothing(storage: Path, monkeypatch: pytest.MonkeyPatch):
    # The call arrives, its answer does not: so the same points are sent again.
    send, faults = RunSender.send, iter([True, True, False])

    def unreliable(self: RunSender, items) -> None:
        send(self, items)
        if next(faults, False):
            raise requests.ConnectionError("no answer")

    monkeypatch.setattr(RunSender, "send", unreliable)
    run_id = finished_run(storage, 60)
    rows = MlflowClient(tracking_uri(storage)).get_metric_history(run_id, "train/loss")
    assert sorted(row.step for row in rows) == list(range(1, 61))


def test_what_the_server_refuses_holds_up_nothing(storage: Path, caplog: pytest.LogCaptureFixture):
    tracker = tracker_of(storage)
    tracker.start({"what?": 1})
    tracker.tell(step(1))
    tracker.end("finished")
    run = MlflowClient(tracking_uri(storage)).get_run(id_of(tracker))
    assert (run.info.status, run.data.params, run.data.metrics["train/loss"]) == ("FINISHED", {}, 3.0)
    assert "1 calls refused" in caplog.text


def test_a_queue_that_is_full_leaves_the_rest_to_the_log(
    storage: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("dflash_pipeline.tracking.mlflow_tracker.QUEUE_RECORDS", 3)
    tracker = tracker_of(storage)
    for number in range(1, 6):
        tracker.tell(step(number))
    tracker.start({})
    tracker.end("finished")
    assert list(values_by_step(tracking_uri(storage), id_of(tracker), "train/loss")) == [1, 2, 3]
    assert "2 left out" in caplog.text


class Answers500(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(500)
        self.end_headers()
        self.wfile.write(b"<html>broken</html>")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


class AnswersNonsense(Answers500):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>log in first</html>")


@pytest.fixture(params=["closed", "hanging", "answers 500", "answers nonsense"])
def bad_server(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param in ("closed", "hanging"):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            if request.param == "hanging":
                server.listen()
            yield f"http://someone:secret@127.0.0.1:{server.getsockname()[1]}"
    else:
        handler = Answers500 if request.param == "answers 500" else AnswersNonsense
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://someone:secret@127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()


def test_a_bad_server_never_holds_up_training(bad_server: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="dflash_pipeline")
    tracker = remote_tracker(bad_server)
    longest = 0.0
    start = time.monotonic()
    tracker.start({"seed": 7})
    for number in range(1, 501):
        before = time.monotonic()
        tracker.tell(step(number))
        longest = max(longest, time.monotonic() - before)
    assert tracker.run_id(wait_seconds=0) is None
    assert longest < 0.5
    assert time.monotonic() - start < 2
    before = time.monotonic()
    tracker.end("finished")
    assert time.monotonic() - before < END_WAIT_SECONDS + 0.5
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "500 records unsent" in warning.getMessage()
    assert "dflash sync" in warning.getMessage()
    assert "secret" not in caplog.text


def test_a_bad_server_never_fails_the_launching_process(
    bad_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(mlflow_runs, "ANSWER_SECONDS", 1.0)
    before = time.monotonic()
    assert run_status(bad_server, "0" * 32) is None
    assert not repair_status(bad_server, "0" * 32, "killed")
    assert time.monotonic() - before < 3
    assert "secret" not in caplog.text


def test_a_status_left_running_is_put_right_once(storage: Path):
    uri = tracking_uri(storage)
    tracker = tracker_of(storage)
    tracker.start({})
    run_id = tracker.run_id(wait_seconds=20)
    assert run_id is not None
    assert run_status(uri, run_id) == "RUNNING"
    assert repair_status(uri, run_id, "killed")
    assert run_status(uri, run_id) == "KILLED"
    assert not repair_status(uri, run_id, "failed")
    assert run_status(uri, run_id) == "KILLED"
    assert run_status(uri, "0" * 32) is None
    tracker.end("killed")


def test_the_spool_sends_what_is_missing_and_nothing_twice(storage: Path, tmp_path: Path):
    path, uri = tmp_path / "events.jsonl", tracking_uri(storage)
    log = EventLog(path)
    log.start({"seed": 7, "strategy": "bucket"})
    for number in range(1, 11):
        log.tell(step(number, loss=math.inf if number == 9 else 3.0 / number, spike=number == 3))
    log.tell(epoch(10))
    log.end("failed")
    log = EventLog(path)
    for number in range(9, 12):
        log.tell(step(number, attempt=2, loss=0.25))
    log.end("finished")

    run_id = finished_run(storage, 4)
    sent = send_missing(path, tracking_uri=uri, run_id=run_id)
    assert sent.num_params == 1
    assert sent.num_points > 0
    losses = MlflowClient(uri).get_metric_history(run_id, "train/loss")
    assert sorted(row.step for row in losses) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11]
    assert values_by_step(uri, run_id, "train/loss") == {n: 3.0 / n if n < 9 else 0.25 for n in range(1, 12)}
    assert values_by_step(uri, run_id, "loss/nonfinite")[11] == 0
    assert values_by_step(uri, run_id, "spike/count")[11] == 1
    assert send_missing(path, tracking_uri=uri, run_id=run_id) == Sent(num_points=0, num_params=0)
