"""A run of three epochs that differ in steps: the same weights, bit for bit, however often it is stopped."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store.plans import epoch_file
from dflash_pipeline.training.checkpoint import list_checkpoints, newest_whole_checkpoint
from dflash_pipeline.training.settings import Saving
from tests.training.toy_run import Trained, plan_of, train, write_toy

LENGTHS = tuple(np.random.default_rng(7).integers(5, 40, 41).tolist())
SPEC = BatchingSpec(strategy="shuffle", token_budget=70, slots_per_step=2, boundaries=(12, 24, 40), seed=3)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=LENGTHS, spec=SPEC, epochs=3)


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory) -> Trained:
    return train(toy, run_dir=tmp_path_factory.mktemp("whole"))


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_epochs_differ_in_steps(toy):
    counts = [epoch.num_steps for epoch in plan_of(toy).epochs]
    assert len(set(counts)) == 3, counts


def test_a_run_does_every_step_of_the_plan_and_learns(toy, whole):
    plan = plan_of(toy)
    steps = whole.recorder.steps
    assert whole.outcome.finished
    assert [s.global_step for s in steps] == list(range(1, plan.total_steps + 1))
    assert [(s.epoch, s.step) for s in steps] == [
        (epoch.epoch, step) for epoch in plan.epochs for step in range(epoch.num_steps)
    ]
    assert np.mean([s.loss for s in steps[-5:]]) < 0.9 * steps[0].loss


def test_progress_ends_at_exactly_one_in_every_epoch(toy, whole):
    steps = whole.recorder.steps
    last = [s for s, after in pairwise([*steps, None]) if after is None or after.epoch != s.epoch]
    assert [s.epoch_fraction for s in last] == [1.0, 1.0, 1.0]
    assert (steps[-1].run_fraction, steps[-1].run_cost_fraction) == (1.0, 1.0)
    assert all(a.run_fraction < b.run_fraction for a, b in pairwise(steps))
    assert [e.num_steps for e in whole.recorder.epochs] == [e.num_steps for e in plan_of(toy).epochs]


def test_records_add_up_to_the_plan(toy, whole):
    plan = plan_of(toy)
    for epoch in plan.epochs:
        steps = [s for s in whole.recorder.steps if s.epoch == epoch.epoch]
        assert sum(s.real_tokens for s in steps) == epoch.real_tokens == sum(LENGTHS)
        assert sum(s.padded_tokens for s in steps) == epoch.padded_tokens
        assert sum(s.supervised_tokens for s in steps) == epoch.supervised_tokens
        assert sum(s.num_anchors for s in steps) == sum(min(3, length - 3) for length in LENGTHS)


def test_every_step_says_where_its_time_went(toy, whole):
    for record in whole.recorder.steps:
        work = (record.target_seconds, record.drafter_seconds, record.backward_seconds, record.optimizer_seconds)
        assert min(work) > 0
        assert sum(work) + record.communication_seconds + record.data_wait_seconds <= record.seconds
        assert record.rank_busy_seconds == pytest.approx((sum(work),))
        assert record.rank_real_tokens == (record.real_tokens,)
        assert record.memory_bytes > 2**20
        assert np.isnan(record.peak_share)


def test_the_time_left_is_known_from_the_third_step_and_nothing_is_left_at_the_end(toy, whole):
    steps = whole.recorder.steps
    assert [np.isnan(s.seconds_left) for s in steps] == [True, True, *[False] * (len(steps) - 2)]
    assert all(0 <= s.seconds_left_low <= s.seconds_left <= s.seconds_left_high for s in steps[2:])
    assert (steps[-1].seconds_left, steps[-1].seconds_left_high) == (0.0, 0.0)


def test_an_epoch_tells_what_its_buckets_took_and_what_they_should_have(toy, whole):
    for told in whole.recorder.epochs:
        steps = [s for s in whole.recorder.steps if s.epoch == told.epoch]
        seconds = sum(s.seconds for s in steps)
        assert {b.bucket: b.num_steps for b in told.buckets} == dict(Counter(s.bucket for s in steps))
        assert sum(b.seconds for b in told.buckets) == pytest.approx(seconds)
        assert sum(b.expected_seconds for b in told.buckets) == pytest.approx(seconds)
        assert told.rank_busy_seconds == pytest.approx((sum(sum(s.rank_busy_seconds) for s in steps),))


def test_a_resumed_epoch_tells_of_all_its_steps(toy, tmp_path):
    first = plan_of(toy).epochs[0].num_steps
    stopped = train(toy, run_dir=tmp_path, stop_after=first - 3)
    resumed = train(toy, run_dir=tmp_path, stop_after=first)
    assert np.isnan(resumed.recorder.steps[1].seconds_left)
    assert not np.isnan(resumed.recorder.steps[2].seconds_left)
    [told] = resumed.recorder.epochs
    seconds = sum(s.seconds for s in [*stopped.recorder.steps, *resumed.recorder.steps])
    assert sum(b.num_steps for b in told.buckets) == first
    assert sum(b.seconds for b in told.buckets) == pytest.approx(seconds)


def test_fillers_count_for_nothing(tmp_path):
    """One sample for four slots: the same loss as in a step of its own, and every count is that of one sample."""
    padded = write_toy(tmp_path / "four", lengths=(20,), spec=replace(SPEC, slots_per_step=4), epochs=1)
    single = write_toy(tmp_path / "one", lengths=(20,), spec=replace(SPEC, slots_per_step=1), epochs=1)
    assert plan_of(padded).epochs[0].num_fillers == 3
    [with_fillers] = train(padded, run_dir=tmp_path / "a").recorder.steps
    [without] = train(single, run_dir=tmp_path / "b").recorder.steps
    assert (with_fillers.loss, with_fillers.gradient_norm) == (without.loss, without.gradient_norm)
    counts = (with_fillers.real_tokens, with_fillers.padded_tokens, with_fillers.supervised_tokens)
    assert (*counts, with_fillers.num_anchors) == (20, 20, 18, 3)


def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(toy, whole, tmp_path):
    first, second, third = (epoch.num_steps for epoch in plan_of(toy).epochs)
    # After one step, inside an epoch, at the exact end of one, one step into the next, and one step before the end.
    stops = [1, first - 1, first, first + 1, first + second, first + second + third - 1]
    losses: list[tuple[int, str]] = []
    for before, stop in pairwise([0, *stops]):
        part = train(toy, run_dir=tmp_path, stop_after=stop)
        assert (part.outcome.first_step, part.outcome.last_step, part.outcome.finished) == (before, stop, False)
        losses += part.recorder.losses
    last = train(toy, run_dir=tmp_path)
    assert last.outcome.finished
    assert losses + last.recorder.losses == whole.recorder.losses
    assert same_bits(last.weights, whole.weights)
    assert last.trainer.reporter.spikes == whole.trainer.reporter.spikes  # What the next loss is judged by.


def test_after_a_kill_the_steps_since_the_checkpoint_are_done_again_alike(toy, whole, tmp_path):
    first, second, _ = (epoch.num_steps for epoch in plan_of(toy).epochs)
    train(toy, run_dir=tmp_path, stop_after=first + second)
    for newest in list_checkpoints(tmp_path / "checkpoints")[:1]:
        (newest / "state.json").unlink()  # As a torn write would leave it.
    again = train(toy, run_dir=tmp_path)
    assert again.outcome.first_step == first
    assert again.recorder.losses == whole.recorder.losses[first:]
    assert same_bits(again.weights, whole.weights)


def test_a_finished_run_does_nothing(toy, whole, tmp_path_factory):
    folder = Path(whole.trainer.config.run_dir)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = train(toy, run_dir=folder)
    assert again.outcome.finished
    assert again.recorder.steps == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert same_bits(again.weights, whole.weights)


def test_a_checkpoint_at_every_epochs_end(toy, whole):
    first, second, third = (epoch.num_steps for epoch in plan_of(toy).epochs)
    names = [path.name for path in list_checkpoints(Path(whole.trainer.config.run_dir) / "checkpoints")]
    assert names == [f"step_{n:07d}" for n in (first + second + third, first + second, first)]


def test_only_so_many_checkpoints_are_kept(toy, tmp_path):
    train(replace(toy, saving=Saving(keep=1)), run_dir=tmp_path)
    [only] = list_checkpoints(tmp_path / "checkpoints")
    assert only.name == f"step_{plan_of(toy).total_steps:07d}"


def test_damage_ahead_of_the_resumed_step_costs_no_good_checkpoint(toy, tmp_path):
    """Newer damaged checkpoints stay where they are; they are not among the ones that are counted."""
    first, second, third = (epoch.num_steps for epoch in plan_of(toy).epochs)
    kept = replace(toy, saving=Saving(keep=1))
    train(kept, run_dir=tmp_path, stop_after=first)
    for number in (first + 1, first + second + third + 5):
        (tmp_path / "checkpoints" / f"step_{number:07d}").mkdir()
    train(kept, run_dir=tmp_path, stop_after=first + second)
    found = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert found == [f"step_{n:07d}" for n in (first + second + third + 5, first + second, first + 1)]
    assert newest_whole_checkpoint(tmp_path / "checkpoints").name == f"step_{first + second:07d}"


def test_a_checkpoint_of_another_run_is_refused(toy, tmp_path):
    train(toy, run_dir=tmp_path, stop_after=2)
    with pytest.raises(Refused, match="belongs to run toyrun"):
        train(replace(toy, run="another"), run_dir=tmp_path)


def test_an_epoch_that_was_changed_after_sealing_stops_the_run(tmp_path):
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=2)
    other = write_toy(tmp_path / "other", lengths=LENGTHS[::-1], spec=SPEC, epochs=2)
    epoch_file(Path(toy.plan_dir), 1).write_bytes(epoch_file(Path(other.plan_dir), 1).read_bytes())
    with pytest.raises(Refused, match=r"epoch-001\.parquet.*sealed"):
        train(toy, run_dir=tmp_path / "run")
    first = plan_of(toy).epochs[0].num_steps
    assert newest_whole_checkpoint(tmp_path / "run" / "checkpoints").name == f"step_{first:07d}"


def test_a_loss_that_is_not_finite_is_a_spike_and_the_run_goes_on(toy, whole, tmp_path):
    """Also when it is the very first: the optimiser has no moments yet, and the checkpoint must still be one."""

    def poison(trainer):
        collate = trainer.collate

        def poisoned(micro_batch):
            prepared = collate(micro_batch)
            if (micro_batch.epoch, micro_batch.step) == (0, 0):
                return replace(prepared, weights=prepared.weights * torch.inf)
            return prepared

        trainer.collate = poisoned

    stopped = train(toy, run_dir=tmp_path, stop_after=1, watch=poison)
    assert not np.isfinite(stopped.recorder.steps[0].loss)
    assert [s.global_step for s in stopped.recorder.spikes] == [1]
    resumed = train(toy, run_dir=tmp_path)
    assert (resumed.outcome.first_step, resumed.outcome.finished) == (1, True)
    assert all(np.isfinite(s.loss) for s in resumed.recorder.steps)


def test_a_spike_names_the_samples_of_its_step(toy, tmp_path):
    def poison(trainer):
        collate = trainer.collate
        trainer.collate = lambda b: (
            replace(collate(b), weights=collate(b).weights * torch.nan) if (b.epoch, b.step) == (1, 2) else collate(b)
        )

    [spike] = train(toy, run_dir=tmp_path, watch=poison).recorder.spikes
    plan = plan_of(toy)
    assert (spike.epoch, spike.step, spike.global_step) == (1, 2, plan.epochs[0].num_steps + 3)
    assert 1 < spike.expected_loss < 10
    assert 0 < len(spike.sample_ids) < len(LENGTHS)
