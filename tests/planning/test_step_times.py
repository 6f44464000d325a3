"""The fit finds the constants that made the times, through noise, outliers and an unknown slowest rank."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.step_times import fit_time_model

RNG = np.random.default_rng(4)


def measured(steps: int, *, linear: float, quadratic: float, constant: float, noise: float = 0.0) -> tuple:
    """Steps of 4 ranks with rows of one length each, and what they would take."""
    lengths = RNG.uniform(100, 8000, (steps, 4))
    rows = np.floor(32_768 / lengths)
    tokens, squares, batches = rows * lengths, rows * lengths**2, np.ones((steps, 4))
    seconds = (linear * tokens + quadratic * squares + constant * batches).max(axis=1)
    return seconds * RNG.normal(1.0, noise, steps), tokens, squares, batches


def test_the_constants_come_back():
    model = fit_time_model(*measured(400, linear=2e-5, quadratic=2e-5 / 5000, constant=0.03))
    assert model.cost.quadratic_length == pytest.approx(5000, rel=0.02)
    assert model.seconds_per_cost == pytest.approx(2e-5, rel=0.02)
    assert model.seconds_per_micro_batch == pytest.approx(0.03, rel=0.1)
    assert model.relative_error < 0.01
    assert model.num_steps == 400


def test_noise_and_outliers_move_them_little():
    seconds, *features = measured(2000, linear=2e-5, quadratic=2e-5 / 5000, constant=0.0, noise=0.03)
    seconds[::50] *= 10  # Checkpoints.
    model = fit_time_model(seconds, *features)
    assert model.cost.quadratic_length == pytest.approx(5000, rel=0.2)
    assert 0.01 < model.relative_error < 0.05


def test_no_constant_is_negative():
    model = fit_time_model(*measured(300, linear=2e-5, quadratic=0.0, constant=0.0))
    assert model.cost.quadratic_length is None or model.cost.quadratic_length > 1e6
    assert model.seconds_per_micro_batch < 0.005


def test_too_few_steps_are_refused():
    with pytest.raises(Refused, match="7 measured steps"):
        fit_time_model(*measured(7, linear=1e-5, quadratic=0.0, constant=0.0))


def test_the_fewest_steps_are_enough_and_one_less_is_not():
    assert fit_time_model(*measured(20, linear=1e-5, quadratic=0.0, constant=0.1)).num_steps == 20
    with pytest.raises(Refused) as refused:
        fit_time_model(*measured(19, linear=1e-5, quadratic=0.0, constant=0.1))
    assert str(refused.value) == "cost model: 19 measured steps; run at least 20 steps, or give it"


def test_times_of_one_kind_are_explained_by_it_alone():
    ones = np.ones((40, 1))
    tokens = np.linspace(100, 4000, 40).reshape(40, 1)
    linear = fit_time_model((3e-3 * tokens)[:, 0], tokens, tokens**2 / 7, ones)
    assert (linear.seconds_per_cost, linear.relative_error) == pytest.approx((3e-3, 0.0), abs=1e-9)
    assert linear.seconds_per_micro_batch == pytest.approx(0.0, abs=1e-6)
    constant = fit_time_model(0.25 * ones[:, 0], tokens, tokens**2 / 7, ones)
    assert constant.seconds_per_micro_batch == pytest.approx(0.25)
    assert constant.cost.quadratic_length is None


def test_a_column_of_zeros_explains_nothing():
    tokens = np.linspace(100, 4000, 40).reshape(40, 1)
    model = fit_time_model((3e-3 * tokens)[:, 0], tokens, np.zeros_like(tokens), np.ones_like(tokens))
    assert model.cost.quadratic_length is None
    assert model.seconds_per_cost == pytest.approx(3e-3)


def test_steps_of_checkpoints_do_not_count():
    seconds, *features = measured(400, linear=2e-5, quadratic=2e-5 / 5000, constant=0.03)
    seconds[::10] += 60.0
    model = fit_time_model(seconds, *features)
    assert model.cost.quadratic_length == 5000.0  # A whole number.
    assert model.seconds_per_cost == pytest.approx(2e-5, rel=1e-6)
    assert model.seconds_per_micro_batch == pytest.approx(0.03, rel=1e-4)
    assert model.relative_error < 1e-6


def test_times_that_follow_squares_alone_are_still_a_model():
    # Through noise, squares alone fit best in about every second draw.
    for _ in range(20):
        model = fit_time_model(*measured(60, linear=0.0, quadratic=3e-9, constant=0.0, noise=0.1))
        assert model.seconds_per_cost + model.seconds_per_micro_batch > 0
        assert model.cost.quadratic_length is None or model.cost.quadratic_length >= 1


def test_times_that_depend_on_nothing_are_a_model_of_micro_batches():
    seconds, *features = measured(300, linear=1e-5, quadratic=0.0, constant=0.0)
    model = fit_time_model(np.full_like(seconds, 0.25), *features)
    assert model.seconds_per_micro_batch + model.seconds_per_cost > 0
    assert model.relative_error < 0.2
