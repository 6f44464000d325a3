"""What is told step by step, as events: grouping, kinds, severity, and data as the cause."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.events import SpikeRecord
from dflash_pipeline.training.spike_events import events_of, flagged_steps

TOLD = SpikeRecord(
    global_step=0,
    epoch=0,
    step=0,
    bucket=0,
    loss=3.0,
    expected_loss=1.0,
    rule="point",
    severity="warn",
    sample_ids=(),
)


def told(step, **changes):
    return replace(TOLD, global_step=step, **changes)


def rise(step, **changes):
    return told(step, rule="slow rise", **changes)


def events(records, num_samples=None):
    return events_of(records, num_samples=num_samples)


def kinds(records):
    return [(event.kind, event.start, event.end) for event in events(records)]


def test_steps_at_most_ten_apart_are_one_event():
    assert kinds([told(5), told(15), told(26)]) == [("spike", 5, 15), ("spike", 26, 26)]
    assert events([]) == []


def test_the_peak_is_the_highest_loss_and_what_is_no_number_is_above_all():
    [event] = events([told(1, loss=4.0), told(2, loss=6.0), told(3, loss=5.0)])
    assert (event.peak_step, event.peak_loss) == (2, 6.0)
    [event] = events([told(1, loss=4.0), told(2, loss=math.nan), told(3, loss=5.0)])
    assert event.peak_step == 2


def test_an_event_is_as_severe_as_its_worst_step():
    [event] = events([told(1), told(2, severity="alert"), told(3)])
    assert event.severity == "alert"
    assert events([told(1)])[0].severity == "warn"


def test_sixteen_steps_are_a_spike_and_more_are_a_level():
    assert kinds(map(told, range(16))) == [("spike", 0, 15)]
    assert kinds(map(told, range(17))) == [("level shift", 0, 16)]
    assert flagged_steps(events(map(told, range(16)))) == list(range(16))
    assert flagged_steps(events(map(told, range(17)))) == []


def test_a_few_spikes_far_apart_are_no_level():
    records = [told(0), told(9), told(18)]
    assert kinds(records) == [("spike", 0, 18)]
    assert flagged_steps(events(records)) == [0, 9, 18]


def test_what_begins_slowly_is_a_slow_rise_and_no_point_of_it_is_a_spike():
    records = [rise(3), told(7), told(8), rise(12)]
    assert kinds(records) == [("slow rise", 3, 12)]
    assert flagged_steps(events(records)) == []


def test_a_rise_told_in_the_wake_of_a_spike_is_part_of_it():
    records = [told(3), rise(7)]
    assert kinds(records) == [("spike", 3, 7)]
    assert flagged_steps(events(records)) == [3]


@pytest.mark.parametrize(
    ("kind", "records"), [("slow rise", [rise(12), told(13)]), ("level shift", [told(step) for step in range(20)])]
)
def test_a_loss_that_is_not_finite_is_a_spike_whatever_it_is_part_of(kind, records):
    [event] = events([*records, told(20, loss=math.inf, sample_ids=(4,))])
    assert event.kind == kind
    assert event.flagged == (20,)
    assert event.sample_ids == (4,)


def test_spikes_on_the_same_samples_in_two_epochs_are_due_to_data():
    first, other, second = events(
        [
            told(10, sample_ids=(3, 1, 2)),
            told(50, sample_ids=(8, 9)),
            told(110, epoch=1, sample_ids=(2, 7, 3)),
        ]
    )
    assert [first.cause, other.cause, second.cause] == ["data", None, "data"]
    assert first.shared_sample_ids == second.shared_sample_ids == (2, 3)
    assert first.sample_ids == (1, 2, 3)


def test_so_many_in_common_as_by_chance_are_no_cause():
    """Of 360 samples, two steps of 28 share two on the average, and seven hardly ever."""
    first = tuple(range(28))
    for shared, cause in ((2, None), (4, None), (9, "data"), (28, "data")):
        second = (*range(shared), *range(100, 128 - shared))
        found = events([told(10, sample_ids=first), told(50, epoch=1, sample_ids=second)], num_samples=360)
        assert [event.cause for event in found] == [cause] * 2
        assert [event.shared_sample_ids for event in found] == [first[:shared] if cause else ()] * 2


def test_one_conversation_of_many_is_a_cause():
    records = [told(10, sample_ids=tuple(range(47))), told(50, epoch=1, sample_ids=(*range(46, 92), 900))]
    assert [event.shared_sample_ids for event in events(records, num_samples=902_000)] == [(46,)] * 2
    assert [event.cause for event in events(records, num_samples=9_000)] == [None] * 2


def test_the_same_batch_is_a_cause_in_the_smallest_corpus():
    records = [told(10, sample_ids=(1, 2)), told(50, epoch=1, sample_ids=(2, 1))]
    assert [event.cause for event in events(records, num_samples=4)] == ["data"] * 2
    records[1] = told(50, epoch=1, sample_ids=(2, 3))
    assert [event.cause for event in events(records, num_samples=4)] == [None] * 2


def test_large_steps_are_no_trouble():
    """A chance as a plain number would be one of six hundred digits times one as small."""
    first, second = tuple(range(2000)), tuple(range(1000, 3000))
    records = [told(10, sample_ids=first), told(50, epoch=1, sample_ids=second)]
    assert [event.cause for event in events(records, num_samples=20_000)] == ["data"] * 2


def test_twice_in_one_epoch_is_not_another_epoch():
    assert [event.cause for event in events([told(10, sample_ids=(1,)), told(90, sample_ids=(1,))])] == [None, None]


def test_epochs_so_short_that_they_make_one_event():
    [event] = events([told(step, epoch=step // 5, sample_ids=(step % 5,)) for step in (1, 6, 11, 16)])
    assert event.cause == "data"
    assert event.epochs == (0, 1, 2, 3)


def test_a_level_is_not_due_to_the_samples_that_it_lasts_over():
    records = [told(step, sample_ids=(step,)) for step in range(20)]
    records += [told(100 + step, epoch=1, sample_ids=(step,)) for step in range(20)]
    assert [(event.kind, event.cause) for event in events(records)] == [("level shift", None)] * 2


@given(st.sets(st.integers(0, 300)), st.integers(0, 2**10))
def test_every_told_step_lies_in_exactly_one_event(steps, pattern):
    records = [(rise if pattern >> (step % 10) & 1 else told)(step) for step in sorted(steps)]
    found = events(records)
    covered = [step for event in found for step in range(event.start, event.end + 1)]
    assert len(covered) == len(set(covered))
    assert steps <= set(covered)
    assert all(after.start - before.end > 10 for before, after in pairwise(found))
    assert set(flagged_steps(found)) <= {r.global_step for r in records if r.rule == "point"}
