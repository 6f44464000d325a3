from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dflash_pipeline.training.meter import EpochMeter
from tests.tracking.training_records import step

record = st.tuples(st.integers(0, 4), st.floats(0.01, 100.0), st.floats(0.01, 100.0))


@given(st.lists(record, max_size=30))
def test_sums_by_bucket_and_by_rank_are_those_of_a_plain_loop(series):
    meter = EpochMeter(epoch=0)
    for bucket, seconds, cost in series:
        told = replace(step(1), bucket=bucket, seconds=seconds, loss=1.0, rank_busy_seconds=(seconds, cost))
        meter = meter.with_step(told, cost=cost)
    found = {b.bucket: (b.num_steps, b.seconds) for b in meter.bucket_seconds()}
    assert found == {
        bucket: (
            sum(b == bucket for b, _, _ in series),
            pytest.approx(sum(s for b, s, _ in series if b == bucket)),
        )
        for bucket in {b for b, _, _ in series}
    }
    assert sum(b.expected_seconds for b in meter.bucket_seconds()) == pytest.approx(meter.seconds)
    expected_busy = (sum(s for _, s, _ in series), sum(c for _, _, c in series)) if series else ()
    assert meter.rank_busy_seconds == pytest.approx(expected_busy)


def test_a_bucket_that_takes_longer_than_its_cost_says_stands_out():
    meter = EpochMeter(epoch=0)
    for bucket, seconds in ((0, 1.0), (0, 1.0), (1, 4.0)):
        meter = meter.with_step(replace(step(1), bucket=bucket, seconds=seconds), cost=1.0)
    first, second = meter.bucket_seconds()
    assert (first.seconds, first.expected_seconds) == (2.0, 4.0)
    assert (second.seconds, second.expected_seconds) == (4.0, 2.0)


def test_an_epoch_resumed_on_other_ranks_keeps_what_each_did():
    meter = EpochMeter(epoch=0)
    for busy in ((1.0, 2.0), (1.0, 2.0, 3.0, 4.0), (5.0,)):
        meter = meter.with_step(replace(step(1), rank_busy_seconds=busy), cost=1.0)
    assert meter.rank_busy_seconds == (7.0, 4.0, 3.0, 4.0)


def test_sums_of_a_checkpoint_of_before_they_were_kept_begin_at_nothing():
    old = json.dumps({"epoch": 1, "num_steps": 3, "loss_sum": 6.0, "seconds": 9.0})
    meter = TypeAdapter(EpochMeter).validate_json(old)
    assert (meter.mean_loss, meter.bucket_seconds(), meter.rank_busy_seconds) == (2.0, (), ())
    assert math.isnan(EpochMeter(epoch=0).mean_loss)
