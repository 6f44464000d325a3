"""Whether lengths, budget and ranks go together."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_pipeline.contracts.results import BucketBoundaries
from dflash_pipeline.stages.batching import batching_spec
from dflash_pipeline.stages.preflight.fault import Fault, noted
from dflash_pipeline.stages.preflight.subject import Subject
from dflash_pipeline.training.distributed import check_world_size


def check_lengths(subject: Subject) -> Iterator[Fault]:
    """The longest sample has its positions in the target, and its place in a micro-batch."""
    shape, longest = subject.target.shape, subject.recipe.data.max_length
    if shape is not None and longest > shape.num_positions:
        yield Fault(
            where="data.max_length",
            what=f"samples of up to {longest:,} tokens for a target with {shape.num_positions:,} positions",
            fix=f"use at most {shape.num_positions}",
        )
    batching = subject.recipe.batching
    if batching.overlong == "refuse" and batching.token_budget < longest:
        yield Fault(
            where="batching.token_budget",
            what=f"a sample of {longest:,} tokens does not fit a budget of {batching.token_budget:,}",
            fix=f"use at least {longest}, lower data.max_length, or set batching.overlong to drop",
        )


def check_batching(subject: Subject) -> Iterator[Fault]:
    """The rules of batching do not contradict each other. Boundaries, which data decide, stand in as any would do."""
    stand_in = BucketBoundaries(snapshot="", boundaries=(1,), padding_efficiency=1.0)
    faults: list[Fault] = []
    with noted(faults):
        batching_spec(subject.recipe, stand_in)
    yield from faults


def check_ranks(subject: Subject) -> Iterator[Fault]:
    """The ranks share a step evenly."""
    faults: list[Fault] = []
    with noted(faults):
        check_world_size(subject.num_ranks, subject.recipe.batching.slots_per_step)
    yield from faults
