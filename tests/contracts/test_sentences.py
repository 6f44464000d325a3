"""What a broken record says, whole: where, what and what to do. A user reads these, so a wrong word is a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dflash_pipeline.contracts.batching import MOST_TOKENS, CostModel
from dflash_pipeline.contracts.corpus import LengthStatistics, SampleLengths
from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.forecast import TimeModel
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.contracts.progress import Progress, ProgressBoard
from dflash_pipeline.contracts.results import BucketBoundaries
from dflash_pipeline.contracts.run import Attempt, RunRecord
from tests.contracts.test_corpus import SNAPSHOT
from tests.strategies import histogram_of, manifest_of, plan_of, spec_of


def statistics(lengths: tuple[int, ...], counts: tuple[int, ...], supervised: int = 0) -> LengthStatistics:
    return LengthStatistics(snapshot="s", lengths=lengths, counts=counts, num_supervised_tokens=supervised)


def samples(tokens: list[int], supervised: list[int], kind: type = np.int64) -> SampleLengths:
    return SampleLengths(
        snapshot="s", num_tokens=np.array(tokens, dtype=kind), num_supervised=np.array(supervised, dtype=np.int64)
    )


def time_model(*, per_cost: float, per_micro_batch: float, error: float = 0.0) -> TimeModel:
    return TimeModel(
        cost=CostModel(),
        seconds_per_cost=per_cost,
        seconds_per_micro_batch=per_micro_batch,
        relative_error=error,
        num_steps=20,
    )


SENTENCES: list[tuple[Callable[[], object], str, str, str]] = [
    (
        lambda: replace(SNAPSHOT, num_train_samples=0),
        "snapshot s",
        "the snapshot holds no training sample",
        "look at the rejected rows (`dflash rejected`) and at max_length",
    ),
    (
        lambda: replace(SNAPSHOT, num_supervised_tokens=0),
        "snapshot s",
        "0 supervised of 9 tokens",
        "check that conversations have assistant turns and that the chat template renders them",
    ),
    (
        lambda: statistics((1, 2), (1,)),
        "length statistics of snapshot s",
        "2 unique lengths with 1 counts",
        "a corpus has at least one sample, and every length one count",
    ),
    (
        lambda: statistics((2, 2), (1, 1)),
        "length statistics of snapshot s",
        "lengths are not positive and ascending",
        "sort unique lengths of at least one token",
    ),
    (
        lambda: statistics((1, 2), (1, 0)),
        "length statistics of snapshot s",
        "a length without a sample",
        "leave out lengths that do not occur",
    ),
    (
        lambda: statistics((1, 2), (1, 1), 4),
        "length statistics of snapshot s",
        "4 supervised of 3 tokens",
        "supervised tokens are counted among all tokens",
    ),
    (
        lambda: histogram_of({1: 1}).quantile(0),
        "length statistics",
        "quantile of 0",
        "ask for a fraction above 0 and at most 1",
    ),
    (
        lambda: samples([1, 2], [1]),
        "sample lengths of snapshot s",
        "(2,) lengths with (1,) supervised counts",
        "give one of each for every sample",
    ),
    (
        lambda: samples([1], [1], np.int32),
        "sample lengths of snapshot s",
        "columns of int32 and int64",
        "give int64: sums of tokens outgrow smaller types",
    ),
    (
        lambda: samples([], []),
        "sample lengths of snapshot s",
        "there are no samples",
        "give at least one; nothing can be trained on none",
    ),
    (
        lambda: samples([5, 3], [5, 4]),
        "sample lengths of snapshot s",
        "sample 1 has 4 supervised of 3 tokens",
        f"lengths are at least 0, at most {MOST_TOKENS}, and hold their supervised tokens",
    ),
    (
        lambda: Progress(epoch=1, epoch_steps_done=3, epoch_steps=2, run_steps_done=4, run_steps=5),
        "progress in epoch 1",
        "steps 3 of 2, run 4 of 5",
        "advance only within the manifest in use",
    ),
    (
        lambda: ProgressBoard().open_epoch(plan_of(2, 1), manifest_of(3), Position(epoch=0, step=0)),
        "progress",
        "position in epoch 0, manifest of epoch 0 with 3 steps, planned 2",
        "open the manifest that the plan sealed for the position's epoch",
    ),
    (
        # The first epoch that is not in the plan: refused as any other, and not an error of an index.
        lambda: ProgressBoard().open_epoch(plan_of(2, 1), manifest_of(2, epoch=2), Position(epoch=2, step=0)),
        "progress",
        "position in epoch 2, manifest of epoch 2 with 2 steps, planned 0",
        "open the manifest that the plan sealed for the position's epoch",
    ),
    (
        lambda: RunRecord(
            run="r",
            plan="p",
            target="t",
            total_steps=1,
            attempts=(Attempt(number=2, num_ranks=1, first_step=0, status="running", last_step=0),),
        ),
        "run r",
        "attempt 2 stands where attempt 1 belongs",
        "number attempts from 1 without gaps",
    ),
    (
        lambda: BucketBoundaries(snapshot="s", boundaries=(1,), padding_efficiency=1.5),
        "boundaries of snapshot s",
        "padding efficiency 1.5",
        "boundaries hold the longest sample; recompute them for this snapshot",
    ),
    (
        lambda: CostModel(quadratic_length=0.0, anchor_cost=2.0),
        "cost model",
        "quadratic_length 0.0, anchor_cost 2.0",
        "use a positive length (none for linear cost) and a finite anchor cost of at least 0",
    ),
    (
        lambda: replace(spec_of(slots_per_step=4), micro_batches_per_rank=3),
        "batching.micro_batches_per_rank",
        "3 micro-batches per rank do not divide 4 slots",
        "choose a divisor of slots_per_step",
    ),
    (
        lambda: replace(spec_of("window"), padding="boundary"),
        "batching.padding",
        "padding up to the boundary with strategy window, which has no buckets",
        "use padding: batch-max, or strategy: bucket",
    ),
    (
        lambda: spec_of(boundaries=(5, 5)),
        "batching.boundaries",
        "boundaries [5, 5]",
        "give at least one positive length, ascending without repeats",
    ),
    (lambda: spec_of(seed=-1), "batching.seed", "seed -1", "use 0 or more, below 2^63"),
    (
        lambda: manifest_of(2).micro_batch(2, 0),
        "epoch 0",
        "no step 2 slot 0 in 2 steps of 1 slots",
        "count steps and slots from 0",
    ),
    (
        lambda: time_model(per_cost=0.0, per_micro_batch=0.0),
        "time model",
        "seconds 0.0 a cost, 0.0 a micro-batch",
        "fit it to steps that took time",
    ),
]


@pytest.mark.parametrize(("make", "where", "what", "fix"), SENTENCES, ids=[row[2] for row in SENTENCES])
def test_a_broken_record_says_where_what_and_what_to_do(make, where, what, fix):
    with pytest.raises(ContractBroken) as broken:
        make()
    assert (broken.value.where, broken.value.what, broken.value.fix) == (where, what, fix)


def test_what_is_just_allowed():
    assert replace(SNAPSHOT, num_supervised_tokens=1).num_supervised_tokens == 1
    assert statistics((1, 2), (1, 1), 3).supervised_fraction == 1.0
    assert CostModel(quadratic_length=0.5, anchor_cost=0.0).quadratic_length == 0.5
    assert time_model(per_cost=0.0, per_micro_batch=0.1).seconds_per_cost == 0.0
    assert time_model(per_cost=0.1, per_micro_batch=0.0).seconds_per_cost == 0.1


@pytest.mark.parametrize("values", [(-1.0, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, 1.0, -0.1), (1.0, float("inf"), 0.0)])
def test_seconds_of_a_time_model_are_finite_and_at_least_0(values):
    per_cost, per_micro_batch, error = values
    with pytest.raises(ContractBroken, match="time model"):
        time_model(per_cost=per_cost, per_micro_batch=per_micro_batch, error=error)
    with pytest.raises(ContractBroken, match="time model: seconds"):
        time_model(per_cost=0.0, per_micro_batch=0.0, error=0.5)
