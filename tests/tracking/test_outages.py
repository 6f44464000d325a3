"""R12: a server that is down, silent, broken, slow, or deaf to its own answers costs a run nothing, and gets it all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_pipeline.tracking import mlflow_tracker
from dflash_pipeline.tracking.charting import timed_points
from dflash_pipeline.tracking.mlflow_runs import RunTemplate
from dflash_pipeline.tracking.replay import End, replay
from dflash_pipeline.tracking.spool import Sent
from dflash_pipeline.training.event_log import each_event
from tests.cases.mlflow_stub import BROKEN, DEAF, REFUSES, SILENT, SLOW, UP, FailingServer
from tests.tracking.logged_run import LoggedRun
from tests.tracking.training_records import epoch, step

ENDED = End(status="finished", unix_milliseconds=2_000_000_000_000)

LONGEST_STALL = 1.0
STEPS = 20


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingServer]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(mlflow_tracker, "LONGEST_PAUSE_SECONDS", 0.5)
    with FailingServer(tmp_path / "artifacts") as server:
        server.slow_seconds = 0.6
        yield server


def template(server: FailingServer) -> RunTemplate:
    return RunTemplate(
        tracking_uri=server.uri, experiment="cases", artifact_location=None, run_name="a run", tags={}, started_ms=1
    )


def train(run: LoggedRun, *, seconds_a_step: float = 0.005) -> float:
    """Tells a run's steps; the longest call."""
    longest = 0.0

    def timed(call, *inputs) -> None:
        nonlocal longest
        before = time.monotonic()
        call(*inputs)
        longest = max(longest, time.monotonic() - before)

    timed(run.start, {"seed": 7})
    for number in range(1, STEPS + 1):
        time.sleep(seconds_a_step)
        timed(run.tell, step(number))
    timed(run.tell, epoch(STEPS))
    return longest


def stored(server: FailingServer) -> list[tuple[str, int, float]]:
    with server.lock:
        return sorted((m["key"], int(m["step"]), float(m["value"])) for m in server.metrics)


def expected(run: LoggedRun) -> list[tuple[str, int, float]]:
    return sorted((p.point.key, p.point.step, p.point.value) for p in timed_points(each_event(run.events)))


@pytest.mark.parametrize("behaviour", [REFUSES, SILENT, BROKEN, SLOW, DEAF])
def test_it_never_holds_up_a_step_and_everything_arrives_afterwards_once(
    server: FailingServer, tmp_path: Path, behaviour: str
):
    run = LoggedRun(server.uri, tmp_path / "run", artifact_location=None, end_wait_seconds=0.5)
    server.behave(behaviour)
    assert train(run) < LONGEST_STALL
    before = time.monotonic()
    run.end("finished")
    assert time.monotonic() - before < 0.5 + LONGEST_STALL
    run.wait_until_gone()
    server.behave(UP)
    replay(tmp_path / "run", template(server), run_id=None, end=ENDED)
    assert stored(server) == expected(run)
    assert len(expected(run)) == STEPS * 33 + 4
    assert (server.num_created, server.status) == (1, "FINISHED")
    assert server.params == {"seed": "7"}
    assert replay(tmp_path / "run", template(server), run_id=None, end=None).sent == Sent()


def test_a_server_that_comes_back_gets_the_rest_while_the_run_goes_on(server: FailingServer, tmp_path: Path):
    run = LoggedRun(server.uri, tmp_path / "run", artifact_location=None)
    train(run)
    server.behave(BROKEN)
    for number in range(STEPS + 1, 2 * STEPS):
        run.tell(step(number))
    server.behave(UP)
    run.tell(step(2 * STEPS))
    run.end("finished")
    assert stored(server) == expected(run)
    assert server.status == "FINISHED"


def test_many_points_are_few_calls(server: FailingServer, tmp_path: Path):
    run = LoggedRun(server.uri, tmp_path / "run", artifact_location=None)
    run.log.start({})
    for number in range(1, 121):
        run.log.tell(step(number))
    run.mlflow.start({})
    run.end("finished")
    assert len(stored(server)) == 120 * 33
    assert server.num_batches <= 120 * 33 / 900 + 5


def test_credentials_reach_the_server_and_nothing_else(
    server: FailingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "somebody")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush-hush")
    run = LoggedRun(server.uri, tmp_path / "run", artifact_location=None, end_wait_seconds=2.0)
    train(run)
    server.behave(BROKEN)
    run.tell(step(STEPS + 1))
    run.end("finished")
    assert "did not take everything" in caplog.text
    assert any(given.startswith("Basic ") for given in server.authorizations)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    told = [str(server.params), str(server.tags), str(server.metrics), caplog.text]
    assert written
    assert not [text for text in written if b"hush-hush" in text or b"somebody" in text]
    assert not [text for text in told if "hush-hush" in text or "somebody" in text]
