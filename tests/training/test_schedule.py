from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.training.schedule import learning_rate
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import plan_of, train, write_toy


def rate(step, *, total_steps=101, warmup_fraction=0.1, end_fraction=0.0):
    return learning_rate(
        step, total_steps=total_steps, peak=2e-3, warmup_fraction=warmup_fraction, end_fraction=end_fraction
    )


def test_it_rises_in_equal_parts_to_the_peak():
    rates = [rate(step) for step in range(11)]
    assert rates[0] == pytest.approx(2e-3 / 11)
    assert [b - a for a, b in pairwise(rates)] == pytest.approx([2e-3 / 11] * 10)
    assert rates[10] == 2e-3


def test_half_way_down_it_is_half_way_to_its_end():
    assert rate(55) == pytest.approx(1e-3)
    assert rate(55, end_fraction=0.5) == pytest.approx(1.5e-3)


@given(st.integers(1, 5000), st.floats(0, 0.9), st.floats(0, 1))
def test_its_end_is_exact_in_the_last_step_and_in_no_step_before(total_steps, warmup_fraction, end_fraction):
    def at(step):
        return rate(step, total_steps=total_steps, warmup_fraction=warmup_fraction, end_fraction=end_fraction)

    last = total_steps - 1
    if min(round(total_steps * warmup_fraction), last) == last:
        assert at(last) == 2e-3  # Nothing comes after the peak.
        return
    assert at(last) == 2e-3 * end_fraction
    assert at(last) <= at(last - 1) <= 2e-3
    assert 0 < at(0) <= 2e-3


@given(st.integers(3, 300), st.floats(0, 0.6))
def test_it_rises_then_falls(total_steps, warmup_fraction):
    rates = [rate(step, total_steps=total_steps, warmup_fraction=warmup_fraction) for step in range(total_steps)]
    top = rates.index(max(rates))
    assert rates[top] == 2e-3
    assert all(a < b for a, b in pairwise(rates[: top + 1]))
    assert all(a > b for a, b in pairwise(rates[top:]))


def test_the_horizon_of_a_run_is_its_plans_total(tmp_path):
    config = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=2)
    plan = plan_of(config)
    steps = train(config, run_dir=tmp_path / "run").recorder.steps
    settings = config.settings
    assert [record.learning_rate for record in steps] == [
        learning_rate(
            step,
            total_steps=plan.total_steps,
            peak=settings.learning_rate,
            warmup_fraction=settings.warmup_fraction,
            end_fraction=settings.end_fraction,
        )
        for step in range(plan.total_steps)
    ]
    assert steps[-1].learning_rate == settings.learning_rate * settings.end_fraction
