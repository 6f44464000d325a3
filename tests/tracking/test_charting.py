"""From log to points: the same whoever reads it, from wherever; thin where the run is long, and never blind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.contracts.events import AcceptanceRecord, AlarmRecord, Record, StepRecord, VerdictRecord
from dflash_pipeline.tracking.charting import Charting, timed_points
from dflash_pipeline.tracking.spool import lines_from
from dflash_pipeline.training.event_json import as_event
from dflash_pipeline.training.event_log import EventLog
from tests.tracking.training_records import epoch, spike, step

LOSS = "train/loss"


def log_of(*attempts: Sequence[Record], params: dict | None = None, ended: bool = True) -> list[dict]:
    events, seconds = [], 1000.0
    for records in attempts:
        lines = [{"kind": "start", "params": params or {}}, *map(as_event, records)]
        lines += [{"kind": "end", "status": "finished"}] if ended else []
        for line in lines:
            seconds += 0.5
            events.append({"unix_seconds": seconds} | line)
    return events


def steps(count: int, *, spikes: Sequence[int] = (), per_epoch: int = 10**9) -> list[StepRecord]:
    return [
        replace(
            step(n, spike=n in spikes),
            step=(n - 1) % per_epoch,
            epoch_fraction=((n - 1) % per_epoch + 1) / min(per_epoch, count),
        )
        for n in range(1, count + 1)
    ]


def told(events, key: str = LOSS) -> list[int]:
    return [p.point.step for p in timed_points(iter(events)) if p.point.key == key]


@pytest.mark.parametrize("most", [1, 7, 100, 1000, 5000])
def test_a_chart_is_about_as_long_as_asked_and_has_the_ends_of_epochs(most):
    records = steps(1000, per_epoch=250)
    shown = told(log_of(records, params={"total_steps": 1000, "points_a_metric": most}))
    assert len(shown) <= most + 9
    assert len(shown) >= min(1000, most)
    assert {1, 250, 251, 500, 501, 750, 751, 1000} <= set(shown)
    assert shown == sorted(set(shown))


def test_every_spike_is_shown_and_the_highest_loss_between():
    records = steps(100, spikes=(33, 58))
    records[76] = replace(records[76], loss=8.0)
    events = log_of(records, params={"total_steps": 100, "points_a_metric": 5})
    assert {33, 58} <= set(told(events))
    highest = {p.point.step: p.point.value for p in timed_points(iter(events)) if p.point.key == "train/loss_max"}
    assert highest[80] == 8.0
    flags = {p.point.step: p.point.value for p in timed_points(iter(events)) if p.point.key == "spike/flag"}
    assert [s for s, flag in flags.items() if flag] == [33, 58]


@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 60))
def test_tokens_of_thinned_steps_are_all_in_the_rates(count, most, resumed_at):
    resumed_at = min(resumed_at, count - 1)
    records = [replace(r, seconds=1.0, real_tokens=n) for n, r in enumerate(steps(count), start=1)]
    again = [replace(r, attempt=2) for r in records[resumed_at:]]
    events = log_of(records, again, params={"total_steps": count, "points_a_metric": most}, ended=False)
    at = told(events, "throughput/useful_tokens_per_second")
    rates = [p.point for p in timed_points(iter(events)) if p.point.key == "throughput/useful_tokens_per_second"]
    # Of each attempt apart: from one point to the next, rate times steps is the tokens between.
    total, before = 0.0, 0
    for point in rates:
        if point.step <= before:
            before = resumed_at
        total += point.value * (point.step - before)
        before = point.step
    assert total == pytest.approx(sum(r.real_tokens for r in [*records, *again]))
    assert at[-1] == count


def test_steps_that_waited_when_an_attempt_was_killed_are_told_when_the_next_begins():
    first, second = steps(20)[:7], [replace(record, attempt=2) for record in steps(20)[7:]]
    events = log_of(first, second, params={"total_steps": 20, "points_a_metric": 4}, ended=False)
    assert told(events) == [1, 5, 7, 8, 10, 15, 20]


def test_counts_go_on_from_where_an_attempt_begins_again():
    first = steps(6, spikes=(2, 5))
    second = [step(n, attempt=2, spike=n == 8) for n in range(4, 9)]
    points = [p for p in timed_points(iter(log_of(first, second))) if p.point.key == "spike/count"]
    assert [p.point.value for p in points] == [0, 1, 1, 1, 2, 2, 1, 1, 1, 1, 2]


def test_times_never_go_back_and_a_later_attempt_is_later():
    events = log_of(steps(3), steps(3), ended=False)
    second = next(n for n, event in enumerate(events) if n and event["kind"] == "start")
    back = [event | {"unix_seconds": 7.0 if n >= second else event["unix_seconds"]} for n, event in enumerate(events)]
    times = [p.unix_milliseconds for p in timed_points(iter(back)) if p.point.key == LOSS]
    assert times == sorted(times)
    assert min(times[3:]) > max(times[:3])


@settings(max_examples=25)
@given(st.integers(0, 40), st.integers(1, 20))
def test_reading_on_from_anywhere_gives_the_rest(cut, most):
    events = log_of(steps(17, spikes=(5,)), steps(9), params={"total_steps": 17, "points_a_metric": most})
    cut = min(cut, len(events))
    all_at_once, in_parts = Charting(), Charting()
    expected = [all_at_once.read(event).points for event in events][cut:]
    for event in events[:cut]:
        in_parts.read(event)
    assert [in_parts.read(event).points for event in events[cut:]] == expected


def test_what_is_no_chart_is_a_tag_or_nothing():
    charting = Charting()
    for event in log_of([step(1)], ended=False):
        charting.read(event)
    verdict = VerdictRecord(global_step=1, epoch=0, limit="target", share=0.5, sentence="half of it")
    alarm = AlarmRecord(global_step=1, epoch=0, step=0, cause="spike", message="look", value=1.0, limit=0.5)
    assert charting.read({"unix_seconds": 1.0} | as_event(verdict)).tags == {"last_verdict": "half of it"}
    assert charting.read({"unix_seconds": 1.0} | as_event(spike(3))).tags is not None
    told = charting.read({"unix_seconds": 1.0} | as_event(alarm))
    assert [(p.point.key, p.point.step) for p in told.points] == [("alarm/spike", 1)]
    assert told.tags == {"alarm.spike": "step 1: look", "alarms": "spike at step 1"}


def test_acceptance_is_drawn_against_the_step_it_was_measured_after():
    record = AcceptanceRecord(
        global_step=3, mean=2.5, low=2.25, high=2.75, num_prompts=8, expected_acceptance=2.0, seconds=9.0
    )
    found = Counter(p.point.step for p in timed_points(iter(log_of([*steps(9), record]))) if "accept" in p.point.key)
    assert found[3] == 5


def test_lines_are_read_whole_and_from_any_of_their_ends(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl")
    log.start({"text": "x" * 3_000_000})  # Longer than a block that is read at once.
    for record in [*steps(5), epoch(5)]:
        log.tell(record)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "step"')
    lines = list(lines_from(tmp_path / "events.jsonl", 0))
    assert [event["kind"] for event, _ in lines] == ["start", *["step"] * 5, "epoch"]
    for number, (_, end) in enumerate(lines, start=1):
        assert list(lines_from(tmp_path / "events.jsonl", end)) == lines[number:]
        assert list(lines_from(tmp_path / "events.jsonl", 0, stop=end)) == lines[:number]
