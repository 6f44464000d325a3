"""Hypothesis strategies for what is planned: corpora, specs, manifests, plans. Small, and wide in their corners."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
from hypothesis import event, example
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel, Strategy
from dflash_pipeline.contracts.corpus import LengthStatistics, SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest, EpochSummary
from dflash_pipeline.contracts.plan import RunPlan

MAX_LENGTH = 40
_met: set[str] = set()


def met(case: str, *, when: bool = True) -> None:
    """Note that an example was of this interesting case."""
    if when:
        event(case)
        _met.add(case)


def must_meet(*cases: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Above `@given`: the property must have met each of these cases, so that it is known not to be vacuous."""

    def wrap(check: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(check)
        def run() -> None:
            _met.clear()
            check()
            missing = set(cases) - _met
            assert not missing, f"no example was of the cases {sorted(missing)}"

        return run

    return wrap


def samples_of(lengths: list[int], supervised: list[int] | None = None) -> SampleLengths:
    tokens = np.array(lengths, dtype=np.int64)
    return SampleLengths(
        snapshot="snapshot",
        num_tokens=tokens,
        num_supervised=tokens if supervised is None else np.array(supervised, dtype=np.int64),
    )


def histogram_of(counts: dict[int, int]) -> LengthStatistics:
    return LengthStatistics(
        snapshot="snapshot",
        lengths=tuple(sorted(counts)),
        counts=tuple(counts[x] for x in sorted(counts)),
        num_supervised_tokens=0,
    )


def spec_of(
    strategy: Strategy = "bucket",
    *,
    token_budget: int = 100,
    slots_per_step: int = 1,
    boundaries: tuple[int, ...] = (MAX_LENGTH,),
    seed: int = 0,
) -> BatchingSpec:
    return BatchingSpec(
        strategy=strategy,
        token_budget=token_budget,
        slots_per_step=slots_per_step,
        boundaries=boundaries,
        seed=seed,
    )


def manifest_of(num_steps: int, *, epoch: int = 0, cost: float = 1.0) -> EpochManifest:
    """An epoch of `num_steps` steps of one slot, one sample of one token each."""
    column = np.ones((num_steps, 1), dtype=np.int64)
    return EpochManifest(
        epoch=epoch,
        num_corpus_samples=num_steps,
        slots_per_step=1,
        token_budget=1,
        sample_ids=np.arange(num_steps),
        offsets=np.arange(num_steps + 1),
        padded_length=column,
        num_tokens=column,
        supervised_tokens=column,
        cost=np.full((num_steps, 1), cost),
        filler=np.zeros((num_steps, 1), dtype=np.bool_),
        dropped=np.zeros(0, dtype=np.int64),
    )


def summary_of(num_steps: int, *, epoch: int = 0, cost: float = 1.0) -> EpochSummary:
    return manifest_of(num_steps, epoch=epoch, cost=cost).summary()


def plan_of(*steps: int, cost: float = 1.0) -> RunPlan:
    """A plan of epochs with these numbers of steps, each step of this cost."""
    epochs = tuple(summary_of(num_steps, epoch=epoch, cost=cost) for epoch, num_steps in enumerate(steps))
    return RunPlan(snapshot="snapshot", spec=spec_of(), epochs=epochs)


costs = st.builds(
    CostModel,
    quadratic_length=st.none() | st.floats(0.1, 1e5),
    anchor_cost=st.sampled_from([0.0, 2.5]),
)

histograms = st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=9).map(histogram_of)

epoch_steps = st.lists(st.integers(1, 9), min_size=1, max_size=6)
"""Numbers of steps of the epochs of a run."""


@st.composite
def corpora(draw: st.DrawFn, *, min_length: int = 0) -> SampleLengths:
    """Up to 60 samples, often of few lengths; some have no token, unless `min_length` says otherwise."""
    lengths = draw(
        st.lists(st.integers(min_length, MAX_LENGTH), min_size=1, max_size=60)
        | st.lists(st.sampled_from([max(min_length, 1), 7, MAX_LENGTH]), min_size=1, max_size=60)
    )
    share = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return samples_of(lengths, [int(length * share) for length in lengths])


@st.composite
def specs(draw: st.DrawFn) -> BatchingSpec:
    """Every strategy, padding and tail rule; budgets down to below the longest sample, which is then dropped."""
    strategy = draw(st.sampled_from(get_args(Strategy)))
    slots = draw(st.integers(1, 6))
    inner = draw(st.sets(st.integers(1, MAX_LENGTH - 1), max_size=4))
    return BatchingSpec(
        strategy=strategy,
        token_budget=draw(st.integers(MAX_LENGTH // 2, 8 * MAX_LENGTH)),
        slots_per_step=slots,
        micro_batches_per_rank=draw(st.sampled_from([a for a in range(1, slots + 1) if slots % a == 0])),
        boundaries=(*sorted(inner), MAX_LENGTH),
        padding=draw(st.sampled_from(["batch-max", "boundary"] if strategy == "bucket" else ["batch-max"])),
        cost=draw(costs),
        seed=draw(st.integers(0, 2**63 - 1)),
        tail=draw(st.sampled_from(["fill", "drop"])),
        overlong="drop",
    )


STATIC = replace(spec_of(token_budget=80, slots_per_step=2, boundaries=(10, MAX_LENGTH)), padding="boundary")
DEAR = CostModel(quadratic_length=50.0, anchor_cost=2.5)

CORNERS = {
    "fillers, accumulation": (
        samples_of([3, 40, 40]),
        replace(spec_of("shuffle", token_budget=40, slots_per_step=4), micro_batches_per_rank=2, cost=DEAR),
    ),
    "a tail to drop": (
        samples_of([10] * 13),
        replace(spec_of("shuffle", token_budget=10, slots_per_step=4), tail="drop"),
    ),
    "static shapes": (samples_of([5, 6, 30, 9, 31, 8, 7]), STATIC),
    "one sample": (samples_of([7]), spec_of("sorted", slots_per_step=3)),
    "above the budget, without a token": (
        samples_of([40, 3, 0, 3]),
        replace(spec_of(token_budget=20, boundaries=(5, MAX_LENGTH)), overlong="drop"),
    ),
    "several steps of full batches": (samples_of([20] * 12), spec_of("sorted", token_budget=40, slots_per_step=2)),
}
"""Corpora and specs that no property may miss by chance."""


def with_corners(*others: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Between `must_meet` and `given`: try every corner, with these values for the arguments after corpus and spec."""

    def wrap(check: Callable[..., None]) -> Callable[..., None]:
        for samples, spec in CORNERS.values():
            check = example(samples, spec, *others)(check)
        return check

    return wrap
