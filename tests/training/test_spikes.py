import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.training.spikes import WARMUP, WINDOW, SpikeState, Verdict, judge, no_history


def judged(losses: list[float], buckets: list[int] | None = None, state: SpikeState | None = None):
    state = state or no_history(3)
    verdicts: list[Verdict] = []
    for step, loss in enumerate(losses):
        verdict, state = judge(state, loss=loss, bucket=buckets[step] if buckets else 0)
        verdicts.append(verdict)
    return verdicts, state


def flagged(losses: list[float], buckets: list[int] | None = None) -> list[int]:
    verdicts, _ = judged(losses, buckets)
    return [step for step, verdict in enumerate(verdicts) if verdict.spike]


def quiet(number: int, seed: int = 0, level: float = 2.0) -> list[float]:
    return (level * np.exp(np.random.default_rng(seed).normal(0, 0.05, number))).tolist()


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_five_percent_of_noise_is_no_spike(seed):
    assert flagged(quiet(200, seed)) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_always_a_spike_and_never_remembered(loss):
    _, state = judged(quiet(30))
    verdict, after = judge(state, loss=loss, bucket=0)
    assert verdict.spike
    assert verdict.expected_loss == pytest.approx(2.0, rel=0.1)
    assert after == state
    first, _ = judge(no_history(1), loss=loss, bucket=0)
    assert first.spike
    assert math.isnan(first.expected_loss)


def test_the_very_first_loss_is_no_spike():
    assert flagged([1e6]) == []


def test_buckets_are_judged_by_their_own_band():
    """Two length buckets, a factor 4 apart: the long one's usual loss is a spike for the short one."""
    losses, buckets = [], []
    for short, long in zip(quiet(40, 1, 1.0), quiet(40, 2, 4.0), strict=True):
        losses += [short, long]
        buckets += [0, 1]
    _, state = judged(losses, buckets)
    assert not judge(state, loss=4.0, bucket=1)[0].spike
    assert judge(state, loss=4.0, bucket=0)[0].spike


def test_one_spike_does_not_hide_the_next():
    losses = [*quiet(60), 20.0, *quiet(3, 5), 20.0, *quiet(3, 6), 12.0]
    assert flagged(losses) == [60, 64, 68]


def test_values_are_clipped_before_they_are_remembered():
    """More spikes than quiet values: remembered as they are, they would be the band's middle by now."""
    verdicts, _ = judged([*quiet(20), *[20.0] * 25])
    assert verdicts[-1].expected_loss < 5


def test_a_small_deviation_in_a_very_still_series_is_no_spike():
    assert flagged([1.0] * 60 + [1.2]) == []
    assert flagged([1.0] * 60 + [1.3]) == [60]


def test_a_new_level_becomes_the_band():
    steps = flagged(quiet(80) + quiet(300, 3, 4.0))
    assert steps[0] == 80
    assert steps[-1] < 80 + WINDOW


def test_a_falling_loss_is_no_spike():
    assert flagged([8.0 * 0.97**step for step in range(150)]) == []


def test_before_a_bucket_has_a_band_only_a_multiple_of_all_is_a_spike():
    known = quiet(40)
    _, state = judged(known)
    assert not judge(state, loss=2.9 * 2.0, bucket=1)[0].spike
    assert judge(state, loss=3.5 * 2.0, bucket=1)[0].spike


@given(st.lists(st.floats(1e-12, 1e6), max_size=150), st.integers(0, 150))
def test_the_state_is_the_whole_memory(losses, cut):
    """What a checkpoint stores is enough: judging goes on as if never interrupted."""
    everything, _ = judged(losses)
    before, state = judged(losses[:cut])
    after, final = judged(losses[cut:], state=state)
    assert [v.spike for v in before + after] == [v.spike for v in everything]
    assert all(len(values) <= WINDOW for values in final.history)
    assert WARMUP < WINDOW
