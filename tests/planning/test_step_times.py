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


def test_the_unit_of_time_does_not_matter():
    seconds, *features = measured(400, linear=2e-5, quadratic=2e-5 / 5000, constant=0.03, noise=1e-4)
    seconds[::10] *= 2.0  # Less than the others together, and yet ten thousand times the noise.
    in_seconds, in_microseconds = (fit_time_model(seconds * unit, *features) for unit in (1.0, 1e6))
    in_megaseconds = fit_time_model(seconds * 1e-6, *features)
    assert in_seconds.seconds_per_cost == pytest.approx(2e-5, rel=0.01)
    for model, unit in ((in_microseconds, 1e6), (in_megaseconds, 1e-6)):
        assert model.cost == in_seconds.cost
        assert model.seconds_per_cost == pytest.approx(unit * in_seconds.seconds_per_cost, rel=1e-6)
        assert model.relative_error == pytest.approx(in_seconds.relative_error, rel=1e-3)


def test_where_attention_is_nearly_all_its_length_is_one_token():
    # A tenth of a token, in truth: a cost model needs a length of at least one.
    model = fit_time_model(*measured(300, linear=1e-9, quadratic=1e-8, constant=0.0))
    assert model.cost.quadratic_length == 1.0


def test_what_grows_ever_slower_is_a_line_with_a_constant():
    # Both fits with squares would need a negative one.
    tokens = np.linspace(1000, 9000, 60).reshape(60, 1)
    seconds = (1.0 + 1e-3 * tokens - 1e-8 * tokens**2)[:, 0]
    model = fit_time_model(seconds, tokens, tokens**2, np.ones_like(tokens))
    assert model.cost.quadratic_length is None
    assert model.seconds_per_micro_batch == pytest.approx(1.0, rel=0.3)
    assert model.relative_error < 0.02


def test_constants_come_back_from_samples_of_a_million_tokens():
    # Squares are then 10^14 times the number of micro-batches: more than a solver tells apart without scaling.
    lengths = np.random.default_rng(9).uniform(1e5, 1e6, (400, 1))
    tokens = np.floor(1e8 / lengths) * lengths
    squares = tokens * lengths
    model = fit_time_model(
        (2e-5 * tokens + 2e-5 / 500_000 * squares + 90.0)[:, 0], tokens, squares, np.ones_like(tokens)
    )
    assert model.cost.quadratic_length == 500_000
    assert model.seconds_per_micro_batch == pytest.approx(90.0, rel=1e-3)
