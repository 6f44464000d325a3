from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.training.progress_text import duration, percent, progress_text
from tests.tracking.training_records import step


def test_it_says_the_numbers_of_the_record():
    record = replace(
        step(9),
        epoch=1,
        epoch_fraction=0.41,
        run_fraction=0.234,
        run_cost_fraction=0.24,
        seconds_left=11_400.0,
        seconds_left_low=10_200.0,
        seconds_left_high=13_200.0,
    )
    assert progress_text(record, num_epochs=6) == (
        "epoch 1 (of 0 to 5) at 41.0%, run 23.4% (24.0% of its cost), 3 h 10 min left (2 h 50 min to 3 h 40 min)"
    )
    unknown = replace(record, seconds_left=math.nan)
    assert progress_text(unknown, num_epochs=6).endswith("time left not known yet")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (99.4, "99 s"), (100, "2 min"), (3540, "59 min"), (3590, "1 h 0 min"), (90_000, "1 d 1 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@given(st.integers(1, 10**7), st.data())
def test_only_what_is_done_is_a_hundred_percent(total, data):
    done = data.draw(st.integers(0, total))
    assert (percent(done / total) == "100.0%") == (done == total)
