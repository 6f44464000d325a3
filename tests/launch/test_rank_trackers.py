"""Whom the first rank tells: what telling costs is counted, and Dagster's log says how far the run is."""

from __future__ import annotations

from dataclasses import replace

from dflash_pipeline.contracts.events import AttemptRecord, Record
from dflash_pipeline.launch import rank_trackers
from dflash_pipeline.launch.rank_trackers import SAY_SECONDS, PipesLog, Trackers
from dflash_pipeline.training.progress_text import progress_text
from tests.tracking.training_records import epoch, step
from tests.training.toy_run import Recorder


class Slow(Recorder):
    def tell(self, record: Record) -> None:
        hands.now += 0.25
        super().tell(record)


class Hands:
    now = 0.0


hands = Hands()


class FakeLog:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.info = self.warning = self.lines.append


class FakePipes:
    def __init__(self) -> None:
        self.log = FakeLog()


def test_what_telling_took_is_told_once_at_the_end(monkeypatch):
    monkeypatch.setattr(rank_trackers.time, "perf_counter", lambda: hands.now)
    slow, other = Slow(), Recorder()
    trackers = Trackers([slow, other])
    trackers.start({})
    for number in range(3, 8):
        trackers.tell(replace(step(number, attempt=2), seconds=2.0))
    trackers.tell(epoch(7))
    trackers.end("finished")
    expected = AttemptRecord(
        global_step=7, attempt=2, num_steps=5, seconds=10.0, tracker_seconds=1.5, longest_tracker_seconds=0.25
    )
    assert slow.others == other.others == [expected]


def test_an_attempt_without_a_step_has_no_cost_to_tell():
    recorder = Recorder()
    Trackers([recorder]).end("finished")
    assert recorder.others == []


def test_dagsters_log_says_how_far_the_run_is_by_share_and_by_time():
    pipes = FakePipes()
    log = PipesLog(pipes)
    log.start({"run": "r", "total_steps": 1000, "num_ranks": 2, "num_epochs": 3})
    quick = [replace(step(n), seconds=0.1, run_cost_fraction=n / 100) for n in range(1, 11)]
    for record in quick:
        log.tell(record)
    assert pipes.log.lines[1:] == [progress_text(quick[n], num_epochs=3) for n in (4, 9)]
    slow = replace(step(11), seconds=SAY_SECONDS, run_cost_fraction=0.101)
    log.tell(slow)
    assert pipes.log.lines[3:] == [progress_text(slow, num_epochs=3)]
