"""Pictures: the numbers behind them against plain loops, and that each is drawn, small enough, whatever it is given."""

import base64
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages import pictures
from dflash_pipeline.stages.batching import recipe_boundaries
from dflash_pipeline.stages.bucket_curve import efficiency_by_count
from dflash_pipeline.stages.pictures_training import MOST_POINTS, MOST_SPIKES, loss_with_spikes, thinned
from tests.conftest import write_recipe
from tests.strategies import histogram_of, manifest_of, samples_of, spec_of

MOST_BYTES = 100_000
NAN = math.nan
losses = st.lists(st.floats(0, 100) | st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1, max_size=3000)


def png(address: str) -> bytes:
    head, _, body = address.partition(",")
    assert head == "data:image/png;base64"
    return base64.b64decode(body)


@pytest.fixture(scope="module")
def epoch():
    lengths = np.random.default_rng(0).gamma(2, 20, 4000).astype(int) + 3
    spec = spec_of("window", token_budget=400, slots_per_step=8, boundaries=(60, int(lengths.max())))
    return build_epoch_manifest(samples_of(lengths.tolist()), spec, epoch=2)


def test_every_column_of_the_mix_adds_up_to_one_and_holds_its_own_steps_only(epoch):
    mix, columns, bands = pictures.length_mix(epoch)
    assert mix.shape == (bands.size - 1, columns.size - 1) == (24, min(epoch.num_steps, 120))
    assert mix.sum(axis=0) == pytest.approx(np.ones(columns.size - 1))
    for column in (0, 7, columns.size - 2):
        expected = np.zeros(24)
        for step in range(epoch.num_steps):
            if columns[column] <= step + 0.5 < columns[column + 1]:
                for batch in epoch.step_batches(step):
                    if not batch.filler:
                        length = batch.num_tokens / len(batch.sample_ids)
                        expected[min(23, int(np.searchsorted(bands, length, side="right")) - 1)] += batch.num_tokens
        assert mix[:, column] == pytest.approx(expected / expected.sum())


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_the_spread_is_that_of_the_worst_step_of_a_column(epoch, num_ranks):
    spread = pictures.rank_spread(epoch, num_ranks=num_ranks)
    columns = np.linspace(0, epoch.num_steps, spread["most"].size + 1)
    for column in range(spread["most"].size):
        relative = []
        for step in range(epoch.num_steps):
            if columns[column] <= step + 0.5 < columns[column + 1]:
                ranks = [sum(epoch.cost[step, slot] for slot in range(r, 8, num_ranks)) for r in range(num_ranks)]
                relative += [cost / (sum(ranks) / num_ranks) for cost in ranks]
        assert spread["least"][column] == pytest.approx(min(relative))
        assert spread["most"][column] == pytest.approx(max(relative))


@given(losses)
def test_a_thinned_curve_keeps_the_range_and_counts_every_spike(values):
    told = [loss > 90 for loss in values]
    curve = thinned(range(1, len(values) + 1), values, told)
    finite = [loss for loss in values if math.isfinite(loss)]
    assert curve.steps.size == min(MOST_POINTS, len(values))
    assert curve.steps[-1] == len(values)
    if finite:
        assert (np.nanmin(curve.low), np.nanmax(curve.high)) == (min(finite), max(finite))
    assert np.all((curve.low <= curve.middle) & (curve.middle <= curve.high) | np.isnan(curve.middle))
    odd = [i for i, loss in enumerate(values) if told[i] or not math.isfinite(loss)]
    assert curve.num_spikes == len(odd)
    assert curve.spike_steps.size == min(MOST_SPIKES, len(odd))
    if len(odd) <= MOST_SPIKES:
        assert curve.spike_steps.tolist() == [i + 1 for i in odd]


@pytest.mark.parametrize(
    "values",
    [[3.0], [NAN, NAN], [2.0, math.inf, 1.0], [0.0, 0.0], [5.0, 1e-3] * 50, [9.0 - i / 20_000 for i in range(115_000)]],
    ids=["one", "none finite", "infinite", "zero", "logarithmic", "long"],
)
def test_a_loss_is_drawn_whatever_it_is(values):
    curve = thinned(range(1, len(values) + 1), values, [i % 997 == 3 for i in range(len(values))])
    assert len(png(loss_with_spikes(curve))) < MOST_BYTES


def test_an_epoch_is_drawn_whether_it_is_of_one_step_or_of_many(epoch):
    for manifest, ranks in ((manifest_of(1), 1), (epoch, 8)):
        assert len(png(pictures.epoch_over_steps(manifest, num_ranks=ranks))) < MOST_BYTES


def test_efficiency_against_buckets_reaches_what_was_chosen_and_never_falls(tmp_path):
    statistics = histogram_of({length: 1 + length % 7 for length in range(5, 190, 3)})
    recipe = load_recipe(write_recipe(tmp_path / "r.yaml", batching={"num_buckets": 5}))
    boundaries = recipe_boundaries(recipe, statistics)
    curve = efficiency_by_count(recipe, statistics, chosen=5)
    assert len(curve) == 32
    assert curve[4] == boundaries.padding_efficiency
    assert curve == sorted(curve)
    assert len(efficiency_by_count(recipe, histogram_of({7: 2, 9: 1}), chosen=2)) == 2
    for chosen in (1, 5, 32):
        assert len(png(pictures.efficiency_against_buckets(curve, chosen=chosen))) < MOST_BYTES
    assert png(pictures.efficiency_against_buckets([1.0], chosen=1))
