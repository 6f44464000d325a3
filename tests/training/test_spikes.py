import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.store.records import load_record, save_record
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


def rises(losses: list[float]) -> list[int]:
    verdicts, _ = judged(losses)
    return [step for step, verdict in enumerate(verdicts) if verdict.slow_rise]


def disturbed(seed: int, number: int = 300) -> list[float]:
    """Quiet but for a spike, a loss that is no number, a rise and a new level."""
    losses = np.array(quiet(number, seed))
    losses[60] *= 3
    losses[75] = math.nan
    losses[100:140] *= np.linspace(1, 2, 40)
    losses[220:] *= 4
    return losses.tolist()


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


def test_a_rise_of_small_steps_is_told_and_no_step_of_it_is_a_spike():
    losses = quiet(100) + (np.array(quiet(40, 1)) * np.linspace(1, 1.25, 40)).tolist() + quiet(100, 2)
    assert flagged(losses) == []
    assert rises(losses)
    assert set(rises(losses)) <= set(range(100, 140))


def test_a_rise_that_is_told_begins_anew():
    """A step of four s adds 3.25: four of them are above 10, and then four more are needed."""
    still = [1.0] * 40
    step_of_four = math.exp(4 * 0.015)
    assert rises(still + [step_of_four] * 3) == []
    assert rises(still + [step_of_four] * 4) == [43]
    assert rises(still + [step_of_four] * 8) == [43, 47]


def test_one_spike_however_high_is_no_rise():
    assert rises(quiet(60) + [1e6] * 3 + quiet(60, 1)) == []


def test_the_rise_is_over_all_buckets():
    """Two buckets in turn, each with its own band; the rise is in neither for long."""
    _, state = judged([1.0, 2.0] * 30, [0, 1] * 30)
    factor = math.exp(4 * 0.015)
    verdicts, _ = judged([factor, 2 * factor, factor, 2 * factor], [0, 1, 0, 1], state)
    assert [verdict.slow_rise for verdict in verdicts] == [False, False, False, True]


@pytest.mark.parametrize(
    ("factor", "severity"), [(1.24, None), (1.26, "warn"), (1.34, "warn"), (1.36, "alert"), (50.0, "alert")]
)
def test_severity_by_the_ratio_to_a_very_still_series(factor, severity):
    _, state = judged([1.0] * 40)
    assert judge(state, loss=factor, bucket=0)[0].severity == severity


@pytest.mark.parametrize(("z", "severity"), [(6.9, None), (7.1, "warn"), (7.9, "warn"), (8.1, "alert")])
def test_severity_by_deviations_of_a_restless_series(z, severity):
    """Half of the values one tenth below the middle in the logarithm and half above: s is 1.4826 tenths."""
    _, state = judged([math.exp(0.1 * (-1) ** step) for step in range(40)])
    assert judge(state, loss=math.exp(z * 0.14826), bucket=0)[0].severity == severity


def test_what_is_not_finite_is_an_alert_and_no_part_of_a_rise():
    _, state = judged([1.0] * 40 + [math.exp(0.05)] * 3)
    assert state.slow_rise > 0
    verdict, after = judge(state, loss=math.inf, bucket=0)
    assert (verdict.severity, verdict.slow_rise) == ("alert", False)
    assert after.slow_rise == state.slow_rise


def test_a_bucket_without_a_band_leaves_the_rise_as_it_is():
    _, state = judged([1.0] * 40 + [math.exp(0.05)] * 3)
    verdict, after = judge(state, loss=1.5, bucket=1)
    assert not verdict.slow_rise
    assert after.slow_rise == state.slow_rise > 0


def test_what_is_expected_is_of_the_own_bucket_also_beside_a_loss_that_is_not_finite():
    _, state = judged([1.0, 3.0] * 20, [0, 1] * 20)
    assert [judge(state, loss=math.nan, bucket=b)[0].expected_loss for b in (0, 1)] == pytest.approx([1.0, 3.0])


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_a_scaled_series_gets_the_same_verdicts(seed, factor):
    losses = disturbed(seed)
    verdicts, _ = judged(losses)
    scaled, _ = judged([loss * factor for loss in losses])
    assert [(v.severity, v.slow_rise) for v in scaled] == [(v.severity, v.slow_rise) for v in verdicts]
    assert any(v.spike for v in verdicts)
    assert any(v.slow_rise for v in verdicts)


@given(st.lists(st.one_of(st.floats(1e-12, 1e6), st.sampled_from([math.nan, math.inf])), max_size=150), st.data())
def test_the_state_is_the_whole_memory(losses, data):
    """What a checkpoint stores is enough: judging goes on as if never interrupted."""
    cut = data.draw(st.integers(0, len(losses)))
    everything, last = judged(losses)
    before, state = judged(losses[:cut])
    after, final = judged(losses[cut:], state=state)
    assert [(v.severity, v.slow_rise) for v in before + after] == [(v.severity, v.slow_rise) for v in everything]
    assert final == last
    assert all(len(values) <= WINDOW for values in final.history)
    assert all(math.isfinite(value) for values in final.history for value in values)
    assert math.isfinite(final.slow_rise)
    assert WARMUP < WINDOW


def test_a_run_that_is_resumed_at_any_step_gets_the_same_verdicts(tmp_path):
    """Through the file, as a checkpoint goes."""
    losses = disturbed(5)
    everything, _ = judged(losses)
    told = [(v.severity, v.slow_rise) for v in everything]
    assert {"alert", None} <= {severity for severity, _ in told}
    assert any(rise for _, rise in told)
    state = no_history(3)
    for step, loss in enumerate(losses):
        save_record(tmp_path / "state.json", state)
        verdict, state = judge(load_record(tmp_path / "state.json", SpikeState), loss=loss, bucket=0)
        assert (verdict.severity, verdict.slow_rise) == told[step]


def test_a_checkpoint_of_before_there_were_slow_rises_goes_on(tmp_path):
    (tmp_path / "state.json").write_text('{"history": [[0.1, 0.2], []]}')
    assert load_record(tmp_path / "state.json", SpikeState) == SpikeState(history=((0.1, 0.2), ()), slow_rise=0.0)
