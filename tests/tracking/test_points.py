from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.tracking.points import Counts, epoch_points, spike_sentence, step_points
from tests.tracking.training_records import epoch, spike, step


def by_key(points) -> dict[str, float]:
    return {point.key: point.value for point in points}


def test_a_step_says_everything_once():
    points = step_points(step(4, loss=2.5, spike=True), Counts(spikes=3))
    assert {point.step for point in points} == {4}
    assert by_key(points) == {
        "train/loss": 2.5,
        "train/expected_acceptance": 1.5,
        "train/gradient_norm": 0.7,
        "train/learning_rate": 1e-3,
        "train/tokens_per_second": 1800.0,
        "train/padded_tokens_per_second": 2000.0,
        "train/data_wait_fraction": 0.2,
        "spike/flag": 1.0,
        "spike/count": 3.0,
        "loss/nonfinite": 0.0,
        "progress/epoch": 0.1,
        "progress/run": 0.05,
        "progress/run_cost": 0.04,
    }
    assert len(points) == 13


def test_an_epoch_says_what_ran():
    points = by_key(epoch_points(epoch(10)))
    assert points == {"epoch/num_steps": 10.0, "epoch/padding_efficiency": 0.9, "epoch/mean_loss": 2.0}


@given(loss=st.floats(), norm=st.floats(), seconds=st.floats(min_value=0, max_value=1e6))
def test_no_point_is_ever_infinite_or_not_a_number(loss: float, norm: float, seconds: float):
    record = replace(step(4), loss=loss, gradient_norm=norm, seconds=seconds)
    counts = Counts().after(record)
    points = by_key(step_points(record, counts))
    assert all(math.isfinite(value) for value in points.values())
    assert ("train/loss" in points) == math.isfinite(loss)
    assert points["loss/nonfinite"] == (not math.isfinite(loss))


def test_a_step_that_took_no_time_has_no_rate():
    assert "train/tokens_per_second" not in by_key(step_points(replace(step(1), seconds=0.0), Counts()))


@pytest.mark.parametrize(("num_samples", "ending"), [(2, "samples 0, 1"), (23, "19 and 3 more")])
def test_a_spike_is_one_sentence(num_samples: int, ending: str):
    text = spike_sentence(spike(3, num_samples=num_samples))
    assert text.startswith("step 3 (epoch 0 step 2, bucket 1): loss 9, expected 2; ")
    assert text.endswith(ending)


def test_a_slow_rise_is_called_one():
    text = spike_sentence(replace(spike(3), rule="slow rise"))
    assert text.startswith("step 3 (epoch 0 step 2, bucket 1): slow rise, loss 9, expected 2; samples")
