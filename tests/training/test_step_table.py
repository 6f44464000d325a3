"""`steps.parquet`: every field of every step that counts, and of no other."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq

from dflash_pipeline.training.event_log import EventLog
from dflash_pipeline.training.step_table import StepTable, write_step_table
from tests.tracking.training_records import epoch, spike, step


def write_log(path: Path) -> list:
    """Attempt 1 does steps 1 to 6 and is killed, attempt 2 goes on after step 3; the records that count."""
    log = EventLog(path)
    log.start({"seed": 7})
    first = [step(n, loss=float(n)) for n in range(1, 7)]
    for record in first:
        log.tell(record)
    log.tell(spike(4))
    log = EventLog(path)
    log.start({"seed": 7})
    second = [replace(step(n, attempt=2, loss=10.0 + n), rank_busy_seconds=(1.0, 2.0, 3.0)) for n in (4, 5)]
    second[1] = replace(second[1], loss=math.inf, spike=True)
    for record in second:
        log.tell(record)
    log.tell(epoch(5))
    log.end("killed")
    return first[:3] + second


def test_it_holds_what_the_last_attempt_did(tmp_path: Path):
    expected = write_log(tmp_path / "events.jsonl")
    assert write_step_table(tmp_path / "events.jsonl", tmp_path / "steps.parquet") == 5
    rows = pq.read_table(tmp_path / "steps.parquet").to_pylist()
    for row, record in zip(rows, expected, strict=True):
        wanted = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(record).items()}
        assert row.keys() == wanted.keys()
        assert {name: str(value) for name, value in row.items()} == {n: str(v) for n, v in wanted.items()}
    assert [row["attempt"] for row in rows] == [1, 1, 1, 2, 2]


def test_a_torn_last_line_was_never_written(tmp_path: Path):
    write_log(tmp_path / "events.jsonl")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "glob')
    assert write_step_table(tmp_path / "events.jsonl", tmp_path / "steps.parquet") == 5


def test_without_a_step_there_is_no_file(tmp_path: Path):
    EventLog(tmp_path / "events.jsonl").start({})
    table = StepTable(tmp_path)
    table.end("finished")
    assert not table.path.exists()


def test_an_attempt_that_was_asked_to_stop_leaves_it_to_the_next(tmp_path: Path):
    write_log(tmp_path / "events.jsonl")
    table = StepTable(tmp_path)
    table.end("killed")
    assert not table.path.exists()
    table.end("limited")
    assert pq.read_table(table.path).num_rows == 5


def test_what_can_not_be_written_does_not_fail_the_attempt(tmp_path: Path, caplog):
    write_log(tmp_path / "events.jsonl")
    table = StepTable(tmp_path)
    table.path.mkdir()
    table.end("finished")
    assert "no steps.parquet of this attempt" in caplog.text
