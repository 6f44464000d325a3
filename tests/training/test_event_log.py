"""The event log is what resumed runs are compared by and what MLflow is filled from after an outage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline import faults
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import EpochRecord, SpikeRecord
from dflash_pipeline.training.event_log import EventLog, last_attempt_losses, last_attempt_spikes, read_events
from dflash_pipeline.training.tracker import NullTracker, Tracker
from tests.tracking.training_records import step as step_record

STEP = step_record(1, loss=2.5)
EPOCH = EpochRecord(global_step=10, epoch=0, num_steps=10, padding_efficiency=0.9, mean_loss=2.0, seconds=5.0)
SPIKE = SpikeRecord(
    global_step=3,
    epoch=0,
    step=2,
    bucket=1,
    loss=9.0,
    expected_loss=2.0,
    rule="point",
    severity="alert",
    sample_ids=(4, 7),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "events.jsonl"


def test_every_record_is_a_line_with_its_kind(path: Path):
    log: Tracker = EventLog(path)
    log.start({"seed": 7, "strategy": "bucket"})
    log.tell(STEP)
    log.tell(SPIKE)
    log.tell(EPOCH)
    log.end("finished")
    events = read_events(path)
    assert [event["kind"] for event in events] == ["start", "step", "spike", "epoch", "end"]
    assert events[0]["params"] == {"seed": 7, "strategy": "bucket"}
    assert events[1]["learning_rate"] == 1e-3
    assert events[2]["sample_ids"] == [4, 7]
    assert events[-1]["status"] == "finished"
    assert all(event["unix_seconds"] > 1e9 for event in events)


def test_a_line_is_there_before_the_call_returns(path: Path):
    log = EventLog(path)
    log.tell(STEP)
    assert len(read_events(path)) == 1


@given(loss=st.floats())
def test_the_loss_is_exact_and_the_line_is_strict_json(tmp_path_factory: pytest.TempPathFactory, loss: float):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    EventLog(path).tell(replace(STEP, loss=loss, gradient_norm=loss))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    event = json.loads(path.read_text(), parse_constant=refuse)
    again = float.fromhex(event["loss_hex"])
    assert again == loss or (math.isnan(again) and math.isnan(loss))
    assert event["gradient_norm"] == (loss if math.isfinite(loss) else None)


def test_a_torn_last_line_is_passed_over_and_then_cut_off(path: Path):
    EventLog(path).tell(STEP)
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole + whole[:length])
        assert len(read_events(path)) == 1
    log = EventLog(path)
    log.tell(replace(STEP, global_step=2))
    assert [event["global_step"] for event in read_events(path)] == [1, 2]


def test_damage_inside_the_file_is_refused_by_line(path: Path):
    EventLog(path).tell(STEP)
    path.write_bytes(path.read_bytes() + b"\0\0\0\n" + path.read_bytes())
    with pytest.raises(Refused, match=r"events\.jsonl line 2"):
        read_events(path)


def test_no_file_is_no_events(path: Path):
    assert read_events(path) == []
    assert last_attempt_losses(path) == []


def test_the_last_attempt_of_a_step_counts(path: Path):
    log = EventLog(path)
    for step in (1, 2, 3):
        log.tell(replace(STEP, global_step=step, loss=float(step)))
    log.end("failed")
    log = EventLog(path)
    log.tell(replace(STEP, global_step=2, attempt=2, loss=0.5))
    assert last_attempt_losses(path) == [(1, (1.0).hex()), (2, (0.5).hex()), (3, (3.0).hex())]


def test_spikes_of_the_last_attempt_count(path: Path):
    """Told of a step that was done again without being told of, or of one that was lost, they are superseded."""
    log = EventLog(path)
    for step, told in ((1, True), (2, True), (3, False), (4, True)):
        log.tell(replace(STEP, global_step=step))
        if told:
            log.tell(replace(SPIKE, global_step=step))
    log.end("failed")
    log = EventLog(path)
    log.tell(replace(STEP, global_step=2, attempt=2))
    log.tell(replace(STEP, global_step=3, attempt=2, loss=math.inf))
    last = replace(SPIKE, global_step=3, loss=math.inf, expected_loss=0.1, rule="slow rise", severity="warn")
    log.tell(last)
    assert last_attempt_spikes(path) == [replace(SPIKE, global_step=1), last]


def test_spikes_of_before_there_were_slow_rises(path: Path):
    log = EventLog(path)
    log.tell(STEP)
    log.tell(replace(SPIKE, expected_loss=math.nan))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("rule", "severity"):
        del lines[1][name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [spike] = last_attempt_spikes(path)
    assert math.isnan(spike.expected_loss)
    assert (spike.rule, spike.severity, spike.sample_ids) == ("point", "warn", (4, 7))


def test_a_full_disk_is_an_error_and_not_a_gap(path: Path, monkeypatch: pytest.MonkeyPatch):
    log = EventLog(path)
    monkeypatch.setattr(faults, "_ORDER", "enospc:1")
    monkeypatch.setattr(faults, "_passed", faults.Counter())
    with pytest.raises(OSError, match="space"):
        log.tell(STEP)
    log.tell(replace(STEP, global_step=2))
    assert [event["global_step"] for event in read_events(path)] == [2]


def test_the_null_tracker_is_a_tracker():
    tracker: Tracker = NullTracker()
    tracker.start({})
    tracker.tell(STEP)
    tracker.end("killed")
