"""Alarms: each cause told once, told again only after it was gone, and the same after a resume as without one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.events import AcceptanceRecord, AlarmRecord
from dflash_pipeline.training.alarm_tracker import DISK_SECONDS, AlarmTracker, DiskWatch
from dflash_pipeline.training.alarms import AlarmState, Facts, state_after, watch
from dflash_pipeline.training.event_log import EventLog, last_attempt_records
from tests.tracking.training_records import spike, step
from tests.training.toy_run import Recorder

QUIET = replace(step(1), data_wait_seconds=0.0)


def quiet(number, **changes):
    return replace(QUIET, global_step=number, step=number - 1, loss=2.0, **changes)


def acceptance(number, mean, *, expected=3.0, half=0.2):
    return AcceptanceRecord(
        global_step=number,
        mean=mean,
        low=mean - half,
        high=mean + half,
        num_prompts=8,
        expected_acceptance=expected,
        seconds=1.0,
    )


def alarms(records, state=None, facts=None):
    told, state = [], state or AlarmState()
    for record in records:
        new, state = watch(state, record, (facts or {}).get(record.global_step, Facts()))
        told += new
    return told


def when(records, **options):
    return [(alarm.cause, alarm.global_step) for alarm in alarms(records, **options)]


def test_a_quiet_run_tells_nothing():
    assert when(quiet(number) for number in range(1, 300)) == []


def test_a_spike_is_told_once_and_the_next_one_again():
    records = []
    for number in range(1, 60):
        records.append(quiet(number))
        if number in (20, 21, 29, 50):
            records.append(spike(number))
    assert when(records) == [("spike", 20), ("spike", 50)]
    [first, _] = alarms(records)
    assert (first.value, first.limit) == (9.0, 2.0)
    assert "9 where 2 is usual in bucket 1" in first.message


def test_a_spike_ten_steps_after_the_last_is_part_of_it():
    def told(second):
        return when(record for n in range(1, 60) for record in (quiet(n), *([spike(n)] if n in (20, second) else [])))

    assert told(30) == [("spike", 20)]
    assert told(31) == [("spike", 20), ("spike", 31)]


def test_steps_that_are_not_finite_are_one_cause():
    losses = {10: math.nan, 12: math.inf, 40: math.nan}
    records = [replace(quiet(n), loss=losses.get(n, 2.0)) for n in range(1, 60)]
    records[54] = replace(records[54], gradient_norm=math.nan)
    assert when(records) == [("non-finite", 10), ("non-finite", 40), ("non-finite", 55)]


def test_samples_without_a_block():
    records = [quiet(n, num_anchors=11 if n in (5, 6, 90, 300) else 12) for n in range(1, 310)]
    assert when(records) == [("no anchors", 5), ("no anchors", 300)]


def test_a_starving_loader_is_told_once_until_it_has_recovered():
    # 20 % of 50 steps of 0.5 s are exceeded with the 21st that waits 0.25 s. 15 % is neither starving nor recovered.
    stretches = [(99, 0.0), (100, 0.25), (100, 0.075), (100, 0.25), (100, 0.0), (50, 0.25)]
    waits = [wait for length, wait in stretches for _ in range(length)]
    records = [quiet(n, data_wait_seconds=wait) for n, wait in enumerate(waits, 1)]
    assert when(records) == [("loader starving", 120), ("loader starving", 520)]


def test_the_first_steps_say_nothing_about_the_loader():
    records = [quiet(n, data_wait_seconds=0.4 if n < 5 else 0.0) for n in range(1, 100)]
    assert when(records) == []
    assert when(quiet(n, data_wait_seconds=0.4) for n in range(1, 20)) == []
    assert when(quiet(n, data_wait_seconds=0.4) for n in range(1, 21)) == [("loader starving", 20)]


def test_a_new_level_is_a_divergence_and_single_spikes_are_none():
    noise = np.exp(np.random.default_rng(0).standard_t(5, 400) * 0.03)
    spiky = noise.copy()
    spiky[[100, 104, 113]] *= (4.9, 6.8, 1.9)
    assert when(replace(quiet(n), loss=loss) for n, loss in enumerate(spiky, 1)) == []
    noise[200:] *= 2
    [(kind, at)] = when(replace(quiet(n), loss=loss) for n, loss in enumerate(noise, 1))
    assert kind == "divergence"
    assert 216 < at < 240


def test_buckets_of_different_losses_are_no_divergence():
    """Easy batches first, then hard ones: the level of each bucket is its own."""
    records = [replace(quiet(n), loss=1.0 if n < 100 else 4.0, bucket=int(n >= 100)) for n in range(1, 300)]
    assert when(records) == []
    one_bucket = [replace(record, bucket=0) for record in records]
    assert [kind for kind, _ in when(one_bucket)] == ["divergence"]


def test_a_disk_that_cannot_hold_a_checkpoint():
    gib = 2**30
    free = {10: 5 * gib, 20: gib, 30: gib, 40: 3 * gib, 50: gib, 60: 4 * gib, 70: gib}
    facts = {n: Facts(free_bytes=value, checkpoint_bytes=2 * gib) for n, value in free.items()}
    # 3 GiB for 2 are not room enough to forget it; 4 are.
    told = alarms((quiet(n) for n in range(1, 80)), facts=facts)
    assert [(alarm.cause, alarm.global_step) for alarm in told] == [("disk low", 20), ("disk low", 70)]
    assert (told[0].value, told[0].limit) == (gib, 2 * gib)


@pytest.mark.parametrize(
    ("measured", "expected", "told"),
    [(1.5, 3.0, True), (1.9, 3.0, False), (1.05, 1.15, False), (1.01, math.nan, False), (3.2, 3.0, False)],
)
def test_acceptance_far_below_what_training_expects(measured, expected, told):
    records = [quiet(10), acceptance(10, measured, expected=expected), quiet(20), acceptance(20, measured)]
    assert when(records[:2]) == [("acceptance gap", 10)] * told


def test_a_gap_is_told_again_only_after_it_closed():
    means = (1.5, 1.9, 1.5, 2.5, 1.5)
    told = when(acceptance(n, mean) for n, mean in enumerate(means, 1))
    assert told == [("acceptance gap", 1), ("acceptance gap", 5)]


@st.composite
def histories(draw):
    """Steps with causes of every kind that a log can hold, in stretches."""
    records, number = [], 0
    for length, trouble in draw(
        st.lists(
            st.tuples(st.integers(1, 40), st.sampled_from(["none", "spike", "nan", "wait", "anchors", "level", "gap"])),
            max_size=8,
        )
    ):
        for _ in range(length):
            number += 1
            changes = {
                "nan": {"loss": math.nan},
                "wait": {"data_wait_seconds": 0.3},
                "anchors": {"num_anchors": 0},
                "level": {"loss": 6.0},
            }.get(trouble, {})
            records.append(replace(quiet(number), **changes))
            if trouble == "spike":
                records.append(spike(number))
        if trouble == "gap":
            records.append(acceptance(number, 1.2))
    return records


@given(records=histories(), share=st.floats(0, 1))
def test_a_resumed_run_tells_what_the_uninterrupted_one_would(tmp_path_factory, records, share):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    cut = round(share * len(records))
    whole = alarms(records)
    recorder = Recorder()
    for part in (records[:cut], records[cut:]):
        log = EventLog(path)
        state = state_after(last_attempt_records(path))
        tracker = AlarmTracker(Both(log, recorder), state=state, look=Facts)
        for record in part:
            tracker.tell(record)
        tracker.end("finished")
    assert repr([r for r in recorder.others if isinstance(r, AlarmRecord)]) == repr(whole)


@given(records=histories())
def test_a_cause_is_told_once_until_it_is_gone(records):
    """Between two alarms of a kind there are steps at which nothing was raised."""
    state = AlarmState()
    for record in records:
        told, after = watch(state, record)
        for alarm in told:
            assert not state.raised(alarm.cause)
        assert all(after.raised(alarm.cause) for alarm in told)
        state = after


def test_free_space_is_looked_at_once_a_minute(tmp_path):
    now = [100.0]
    watch = DiskWatch(tmp_path, checkpoint_bytes=5, clock=lambda: now[0])
    assert watch.look().checkpoint_bytes == 5
    assert watch.look() == Facts()
    now[0] += DISK_SECONDS
    assert watch.look().free_bytes > 0


class Both:
    """The event log, and a recorder that outlives the attempts."""

    def __init__(self, log, recorder):
        self.log, self.recorder = log, recorder

    def start(self, params):
        pass

    def tell(self, record):
        self.log.tell(record)
        self.recorder.tell(record)

    def sync(self):
        pass

    def end(self, status):
        self.log.end(status)


def test_an_alarm_outlives_its_process(tmp_path):
    """What a log holds is read back as it was told, and keeps a full disk from being told twice."""
    [told] = alarms([quiet(7)], facts={7: Facts(free_bytes=1, checkpoint_bytes=2)})
    log = EventLog(tmp_path / "events.jsonl")
    log.tell(quiet(7))
    log.tell(told)
    records = last_attempt_records(tmp_path / "events.jsonl")
    assert records[1:] == [told]
    state = state_after(records)
    assert state.raised("disk low")
    assert when([quiet(8)], state=state, facts={8: Facts(free_bytes=1, checkpoint_bytes=2)}) == []
