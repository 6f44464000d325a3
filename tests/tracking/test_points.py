from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.events import AttemptRecord, BucketSeconds, StepRecord
from dflash_pipeline.tracking.points import (
    MOST_BUCKETS,
    MOST_RANKS,
    Counts,
    attempt_points,
    epoch_points,
    spike_sentence,
    step_points,
)
from dflash_pipeline.tracking.stretch import Smoothed, Stretch
from tests.tracking.training_records import epoch, spike, step


def by_key(points) -> dict[str, float]:
    return {point.key: point.value for point in points}


def points_of(*records: StepRecord, counts: Counts | None = None):
    smoothed = Smoothed()
    for record in records:
        smoothed = smoothed.after(record)
    return step_points(Stretch(steps=records), counts or Counts(), smoothed)


def test_a_step_says_everything_once():
    points = points_of(step(4, loss=2.5, spike=True), counts=Counts(spikes=3))
    assert {point.step for point in points} == {4}
    assert by_key(points) == {
        "train/loss": 2.5,
        "train/expected_acceptance": 1.5,
        "train/gradient_norm": 0.7,
        "train/learning_rate": 1e-3,
        "spike/flag": 1.0,
        "spike/count": 3.0,
        "loss/nonfinite": 0.0,
        "progress/epoch": 0.1,
        "progress/epochs_done": 0.0,
        "progress/run": 0.05,
        "progress/run_cost": 0.04,
        "progress/seconds_left": 60.0,
        "progress/seconds_left_low": 50.0,
        "progress/seconds_left_high": 80.0,
        "throughput/useful_tokens_per_second": 1800.0,
        "throughput/supervised_tokens_per_second": 800.0,
        "throughput/padded_tokens_per_second": 2000.0,
        "throughput/samples_per_second": 24.0,
        "throughput/useful_tokens_per_second_smoothed": 1800.0,
        "throughput/supervised_tokens_per_second_smoothed": 800.0,
        "throughput/padded_tokens_per_second_smoothed": 2000.0,
        "throughput/samples_per_second_smoothed": 24.0,
        "time/data_wait_share": 0.2,
        "time/target_share": 0.1,
        "time/drafter_share": 0.2,
        "time/backward_share": 0.3,
        "time/communication_share": 0.1,
        "time/optimizer_share": 0.04,
        "ranks/imbalance": pytest.approx(0.34 / 0.32),
        "ranks/slowest": 1.0,
        "ranks/slowest_tokens_per_second": pytest.approx(460 / 0.34),
        "ranks/fastest_tokens_per_second": pytest.approx(440 / 0.3),
        "memory/bytes": 2**30,
    }
    assert len(points) == 33


def test_steps_told_together_keep_their_extremes_and_their_sums():
    records = [
        replace(step(7, loss=9.0), seconds=1.0, real_tokens=100, memory_bytes=5, peak_share=0.2),
        replace(step(8, loss=math.inf, spike=True), seconds=2.0, real_tokens=200, memory_bytes=7, peak_share=0.4),
        replace(step(9, loss=1.0), seconds=1.0, real_tokens=500, memory_bytes=6, peak_share=0.2),
    ]
    points = by_key(points_of(*records))
    assert {point.step for point in points_of(*records)} == {9}
    assert (points["train/loss"], points["train/loss_max"]) == (1.0, 9.0)
    assert points["throughput/useful_tokens_per_second"] == 800 / 4
    assert points["time/data_wait_share"] == pytest.approx(0.3 / 4)
    assert points["throughput/peak_share"] == pytest.approx(0.3)
    assert (points["spike/flag"], points["memory/bytes"]) == (1.0, 7.0)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.001, 1e4)), min_size=1, max_size=40))
def test_what_is_smoothed_lies_among_what_was_measured(steps: list[tuple[int, float]]):
    smoothed = Smoothed()
    for tokens, seconds in steps:
        smoothed = smoothed.after(replace(step(1), real_tokens=tokens, seconds=seconds))
    rates = [tokens / seconds for tokens, seconds in steps]
    found = smoothed.rates()
    assert found is not None
    assert min(rates) * (1 - 1e-9) <= found[0] <= max(rates) * (1 + 1e-9)


def test_what_is_smoothed_forgets_what_is_long_ago():
    slow, fast = (replace(step(1), seconds=1.0, real_tokens=tokens) for tokens in (10, 1000))
    smoothed = Smoothed()
    for record in [slow] * 600 + [fast] * 600:
        smoothed = smoothed.after(record)
    found = smoothed.rates()
    assert found is not None
    assert found[0] == pytest.approx(1000, rel=1e-3)


def test_an_epoch_says_what_ran():
    points = by_key(epoch_points(epoch(10)))
    assert points == {
        "epoch/num_steps": 10.0,
        "epoch/padding_efficiency": 0.9,
        "epoch/mean_loss": 2.0,
        "epoch/seconds": 5.0,
    }


def test_a_slow_bucket_and_a_slow_rank_stand_out():
    buckets = (
        BucketSeconds(bucket=0, num_steps=4, seconds=8.0, expected_seconds=4.0),
        BucketSeconds(bucket=3, num_steps=1, seconds=3.0, expected_seconds=6.0),
    )
    points = by_key(epoch_points(replace(epoch(10), buckets=buckets, rank_busy_seconds=(1.0, 1.0, 4.0))))
    assert (points["bucket/0_seconds_over_expected"], points["bucket/3_seconds_over_expected"]) == (2.0, 0.5)
    assert [points[f"rank/{rank}_busy_over_mean"] for rank in range(3)] == [0.5, 0.5, 2.0]


def test_many_buckets_and_ranks_make_no_more_charts_than_a_page_can_show():
    buckets = tuple(BucketSeconds(bucket=n, num_steps=1, seconds=1.0, expected_seconds=1.0) for n in range(90))
    points = epoch_points(replace(epoch(10), buckets=buckets, rank_busy_seconds=(1.0,) * 64))
    assert len(points) == 4 + MOST_BUCKETS + MOST_RANKS


def test_an_attempt_says_what_telling_cost():
    record = AttemptRecord(
        global_step=9, attempt=1, num_steps=9, seconds=200.0, tracker_seconds=1.0, longest_tracker_seconds=0.25
    )
    assert by_key(attempt_points(record)) == {"tracking/share_of_time": 0.005, "tracking/longest_seconds": 0.25}
    assert by_key(attempt_points(replace(record, seconds=0.0))) == {"tracking/longest_seconds": 0.25}


@given(loss=st.floats(), norm=st.floats(), seconds=st.floats(min_value=0, max_value=1e6), busy=st.floats(0, 1e6))
def test_no_point_is_ever_infinite_or_not_a_number(loss: float, norm: float, seconds: float, busy: float):
    record = replace(step(4), loss=loss, gradient_norm=norm, seconds=seconds, rank_busy_seconds=(busy, 0.0))
    counts = Counts().after(record)
    points = by_key(points_of(record, replace(record, global_step=5), counts=counts))
    assert all(math.isfinite(value) for value in points.values())
    assert ("train/loss" in points) == math.isfinite(loss)
    assert points["loss/nonfinite"] == (not math.isfinite(loss))


def test_a_step_that_took_no_time_has_no_rate():
    points = by_key(points_of(replace(step(1), seconds=0.0)))
    assert not [key for key in points if key.startswith(("throughput/", "time/"))]


def test_a_step_of_before_ranks_were_measured_says_nothing_of_them():
    points = by_key(points_of(replace(step(1), rank_busy_seconds=(), rank_real_tokens=())))
    assert not [key for key in points if key.startswith("ranks/")]


@pytest.mark.parametrize(("num_samples", "ending"), [(2, "samples 0, 1"), (23, "19 and 3 more")])
def test_a_spike_is_one_sentence(num_samples: int, ending: str):
    text = spike_sentence(spike(3, num_samples=num_samples))
    assert text.startswith("step 3 (epoch 0 step 2, bucket 1): loss 9, expected 2; ")
    assert text.endswith(ending)


def test_a_slow_rise_is_called_one():
    text = spike_sentence(replace(spike(3), rule="slow rise"))
    assert text.startswith("step 3 (epoch 0 step 2, bucket 1): slow rise, loss 9, expected 2; samples")
