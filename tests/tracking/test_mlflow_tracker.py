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

from dflash_pipeline.tracking import mlflow_runs, sender
from dflash_pipeline.tracking.mlflow_runs import repair_status, run_status, values_by_step
from dflash_pipeline.tracking.sender import RunSender
from dflash_pipeline.tracking.spool import MARK
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri
from tests.tracking.logged_run import LoggedRun
from tests.tracking.training_records import epoch, spike, step

END_WAIT_SECONDS = 1.0


def run_of(storage: Path, run_dir: Path, *, run_id: str | None = None, files: tuple[Path, ...] = ()) -> LoggedRun:
    return LoggedRun(
        tracking_uri(storage),
        run_dir,
        artifact_location=artifact_location(storage),
        run_id=run_id,
        tags={"dflash.run": "0123"},
        files=files,
    )


def finished_run(storage: Path, run_dir: Path, num_steps: int) -> str:
    run = run_of(storage, run_dir)
    run.start({"seed": 7})
    for number in range(1, num_steps + 1):
        run.tell(step(number))
    run.end("finished")
    return run.run_id


@pytest.mark.parametrize(("status", "written"), [("finished", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_a_run_ends_as_it_ended(storage: Path, tmp_path: Path, status, written: str):
    run = run_of(storage, tmp_path)
    run.start({"seed": 7, "rate": 1e-3, "fill": True, "strategy": "bucket"})
    assert run_status(tracking_uri(storage), run.run_id) == "RUNNING"
    run.tell(step(1))
    run.end(status)
    found = MlflowClient(tracking_uri(storage)).get_run(run.run_id)
    assert found.info.status == written
    assert found.data.params == {"seed": "7", "rate": "0.001", "fill": "True", "strategy": "bucket"}
    assert found.data.tags["dflash.run"] == "0123"
    assert found.data.metrics["train/loss"] == 3.0


def test_every_point_arrives_against_its_step(storage: Path, tmp_path: Path):
    run = run_of(storage, tmp_path)
    run.start({f"p{n}": n for n in range(230)})
    for number in range(1, 101):
        run.tell(step(number, spike=number in (5, 90)))
        if number == 90:
            run.tell(spike(90))
    run.tell(epoch(100))
    run.end("finished")
    uri, run_id = tracking_uri(storage), run.run_id
    assert values_by_step(uri, run_id, "train/loss") == {n: 3.0 / n for n in range(1, 101)}
    counts = values_by_step(uri, run_id, "spike/count")
    assert (counts[4], counts[5], counts[89], counts[100]) == (0, 1, 1, 2)
    assert values_by_step(uri, run_id, "epoch/num_steps") == {100: 100}
    found = MlflowClient(uri).get_run(run_id)
    assert len(found.data.params) == 230
    assert found.data.tags["last_spike"].startswith("step 90")


def test_artifacts_go_into_the_storage_folder(storage: Path, tmp_path: Path):
    table = tmp_path / "steps.parquet"
    run = run_of(storage, tmp_path / "run", files=(table, tmp_path / "absent"))
    run.start({})
    table.write_bytes(b"as good as any")
    run.end("finished")
    client = MlflowClient(tracking_uri(storage))
    assert client.get_run(run.run_id).info.artifact_uri.startswith(artifact_location(storage))
    assert [file.path for file in client.list_artifacts(run.run_id)] == ["steps.parquet"]


def test_a_loss_that_is_no_number_is_counted_and_not_sent(storage: Path, tmp_path: Path):
    run = run_of(storage, tmp_path)
    run.start({})
    for number, loss in enumerate([2.0, math.inf, -math.inf, 1.0], start=1):
        run.tell(step(number, loss=loss))
    run.end("finished")
    uri, run_id = tracking_uri(storage), run.run_id
    assert values_by_step(uri, run_id, "train/loss") == {1: 2.0, 4: 1.0}
    assert values_by_step(uri, run_id, "loss/nonfinite") == {1: 0, 2: 1, 3: 2, 4: 2}


def test_a_run_is_taken_up_again(storage: Path, tmp_path: Path):
    uri = tracking_uri(storage)
    first = run_of(storage, tmp_path)
    first.start({"seed": 7, "ranks": 4})
    for number in range(1, 7):
        first.tell(step(number, loss=10.0, spike=number in (2, 5)))
    first.end("failed")
    run_id = first.run_id

    second = run_of(storage, tmp_path, run_id=run_id)
    second.start({"seed": 7, "ranks": 2, "new": 1})
    assert second.run_id == run_id
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


def test_what_a_killed_attempt_had_not_sent_is_sent_by_the_next(storage: Path, tmp_path: Path):
    first = run_of(storage, tmp_path)
    first.log.start({"seed": 7})
    for number in range(1, 6):
        first.log.tell(step(number))
    first.let_go()  # Before a server was ever spoken to.
    second = run_of(storage, tmp_path)
    second.start({"seed": 7})
    for number in range(4, 8):
        second.tell(step(number, attempt=2, loss=1.0))
    second.end("finished")
    losses = values_by_step(tracking_uri(storage), second.run_id, "train/loss")
    assert losses == {n: 3.0 / n if n < 4 else 1.0 for n in range(1, 8)}


def test_a_run_that_is_gone_is_replaced_and_sent_the_whole_log(
    storage: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run_id = finished_run(storage, tmp_path, 3)
    MlflowClient(tracking_uri(storage)).delete_run(run_id)
    again = run_of(storage, tmp_path, run_id=run_id)
    again.start({"seed": 7})
    again.tell(step(4, attempt=2))
    again.end("finished")
    assert again.run_id != run_id
    assert run_status(tracking_uri(storage), again.run_id) == "FINISHED"
    assert list(values_by_step(tracking_uri(storage), again.run_id, "train/loss")) == [1, 2, 3, 4]
    assert "going on in a new one" in caplog.text


def test_a_run_of_before_there_were_marks_is_not_sent_twice(storage: Path, tmp_path: Path):
    run_id = finished_run(storage, tmp_path, 3)
    (tmp_path / MARK).unlink()
    again = run_of(storage, tmp_path, run_id=run_id)
    again.start({"seed": 7})
    again.tell(step(4, attempt=2))
    again.end("finished")
    rows = MlflowClient(tracking_uri(storage)).get_metric_history(run_id, "train/loss")
    assert sorted(row.step for row in rows) == [1, 2, 3, 4]


def test_a_damaged_mark_costs_a_second_sending_and_no_point(
    storage: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run_id = finished_run(storage, tmp_path, 3)
    (tmp_path / MARK).write_text("{")
    again = run_of(storage, tmp_path, run_id=run_id)
    again.start({"seed": 7})
    again.end("finished")
    rows = MlflowClient(tracking_uri(storage)).get_metric_history(run_id, "train/loss")
    assert sorted(row.step for row in rows) == [1, 2, 3]
    assert "sent again" in caplog.text


def test_a_fault_in_between_loses_nothing_and_doubles_nothing(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The call arrives, its answer does not: so the same points are sent again.
    send, faults = RunSender.send, iter([True, True, False])

    def unreliable(self: RunSender, metrics, tags) -> None:
        send(self, metrics, tags)
        if next(faults, False):
            raise requests.ConnectionError("no answer")

    monkeypatch.setattr(RunSender, "send", unreliable)
    run_id = finished_run(storage, tmp_path, 60)
    rows = MlflowClient(tracking_uri(storage)).get_metric_history(run_id, "train/loss")
    assert sorted(row.step for row in rows) == list(range(1, 61))


def test_a_run_whose_making_was_not_answered_is_found_again(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[str] = []
    create = sender.create_run

    def unreliable(template, spool) -> str:
        made.append(create(template, spool))
        raise requests.ConnectionError("no answer")

    monkeypatch.setattr(sender, "create_run", unreliable)
    assert [finished_run(storage, tmp_path, 2)] == made


def test_what_the_server_refuses_holds_up_nothing(storage: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = run_of(storage, tmp_path)
    run.start({"what?": 1})
    run.tell(step(1))
    run.end("finished")
    found = MlflowClient(tracking_uri(storage)).get_run(run.run_id)
    assert (found.info.status, found.data.params, found.data.metrics["train/loss"]) == ("FINISHED", {}, 3.0)
    assert "1 calls refused" in caplog.text


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


def test_a_bad_server_never_holds_up_training(bad_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="dflash_pipeline")
    run = LoggedRun(bad_server, tmp_path, artifact_location=None, end_wait_seconds=END_WAIT_SECONDS)
    longest = 0.0
    start = time.monotonic()
    run.start({"seed": 7})
    for number in range(1, 501):
        before = time.monotonic()
        run.tell(step(number))
        longest = max(longest, time.monotonic() - before)
    assert run.mlflow.run_id(wait_seconds=0) is None
    assert longest < 0.5
    assert time.monotonic() - start < 2
    before = time.monotonic()
    run.end("finished")
    assert time.monotonic() - before < END_WAIT_SECONDS + 0.5
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{run.events.stat().st_size} bytes of the event log unsent" in warning.getMessage()
    assert f"dflash sync {tmp_path.name}" in warning.getMessage()
    assert "secret" not in caplog.text
    assert "secret" not in "".join(path.read_text() for path in tmp_path.iterdir())


def test_a_bad_server_never_fails_the_launching_process(
    bad_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(mlflow_runs, "ANSWER_SECONDS", 1.0)
    before = time.monotonic()
    assert run_status(bad_server, "0" * 32) is None
    assert not repair_status(bad_server, "0" * 32, "killed")
    assert time.monotonic() - before < 3
    assert "secret" not in caplog.text


def test_a_status_left_running_is_put_right_once(storage: Path, tmp_path: Path):
    uri = tracking_uri(storage)
    run = run_of(storage, tmp_path)
    run.start({})
    run_id = run.run_id
    assert run_status(uri, run_id) == "RUNNING"
    assert repair_status(uri, run_id, "killed")
    assert run_status(uri, run_id) == "KILLED"
    assert not repair_status(uri, run_id, "failed")
    assert run_status(uri, run_id) == "KILLED"
    assert run_status(uri, "0" * 32) is None
    run.end("killed")
