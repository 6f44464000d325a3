"""One epoch's manifest from the lengths of a snapshot: a pure function of (lengths, spec, epoch)."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.cost import padded_cost
from dflash_pipeline.planning.packing import Ints, Packing
from dflash_pipeline.planning.steps import drop_tail, fill_steps
from dflash_pipeline.planning.strategies import STRATEGIES

MAX_NAMED = 20
"""Sample ids an error lists before it says how many more there are."""


def build_epoch_manifest(samples: SampleLengths, spec: BatchingSpec, *, epoch: int) -> EpochManifest:
    """Every micro-batch of epoch `epoch` (from 0). The same inputs give the same bytes on every machine.

    Samples without a token are listed as dropped; those above the token budget are refused by name, or dropped, as
    the spec says; with `tail: drop` so are those of an unfilled last step. Everything else is scheduled once.
    """
    usable, dropped = _usable(samples, spec)
    lengths = samples.num_tokens
    packing = STRATEGIES[spec.strategy](usable, lengths[usable], spec, epoch)
    if spec.tail == "drop":
        packing, tail = drop_tail(packing, spec)
        dropped = np.union1d(dropped, tail)
        filler = np.zeros(packing.sizes.size, dtype=np.bool_)
    else:
        packing, filler = fill_steps(packing, lengths, spec)
    shape = (packing.sizes.size // spec.slots_per_step, spec.slots_per_step)
    supervised = _sum_of_each(samples.num_supervised, packing)
    return EpochManifest(
        epoch=epoch,
        num_corpus_samples=int(lengths.size),
        slots_per_step=spec.slots_per_step,
        token_budget=spec.token_budget,
        sample_ids=packing.sample_ids,
        offsets=np.concatenate(([0], np.cumsum(packing.sizes))),
        padded_length=packing.padded_length.reshape(shape),
        num_tokens=_sum_of_each(lengths, packing).reshape(shape),
        supervised_tokens=supervised.reshape(shape),
        cost=padded_cost(packing.sizes, packing.padded_length, supervised, spec.cost).reshape(shape),
        filler=filler.reshape(shape),
        dropped=dropped,
    )


def _usable(samples: SampleLengths, spec: BatchingSpec) -> tuple[Ints, Ints]:
    """Ids to schedule and ids to drop, both ascending."""
    lengths = samples.num_tokens
    beyond = lengths > spec.boundaries[-1]
    if spec.strategy == "bucket" and beyond.any():
        raise Refused(
            f"{_named(np.flatnonzero(beyond))} longer than the last boundary {spec.boundaries[-1]}",
            where="batching.boundaries",
            fix="optimise the boundaries for this snapshot",
        )
    padded, padded_up = lengths, ""
    if spec.padding == "boundary":
        padded = np.array(spec.boundaries)[np.searchsorted(spec.boundaries, lengths)]
        padded_up = " when padded up to the boundary"
    overlong = padded > spec.token_budget
    if overlong.any() and spec.overlong == "refuse":
        raise Refused(
            f"{_named(np.flatnonzero(overlong))} above the token budget of {spec.token_budget}{padded_up}",
            where="batching.token_budget",
            fix="raise the budget, lower data.max_length so that they are truncated, or set batching.overlong: drop",
        )
    unusable = overlong | (lengths < 1)
    if unusable.all():
        raise Refused(
            f"none of {lengths.size} samples has a token and fits the budget of {spec.token_budget}",
            where="batching",
            fix="look at the lengths and raise the budget",
        )
    return np.flatnonzero(~unusable), np.flatnonzero(unusable)


def _named(ids: Ints) -> str:
    listed = ", ".join(str(i) for i in ids[:MAX_NAMED].tolist())
    more = f" and {ids.size - MAX_NAMED} more" if ids.size > MAX_NAMED else ""
    return f"sample {listed} is" if ids.size == 1 else f"samples {listed}{more} are"


def _sum_of_each(values: Ints, packing: Packing) -> Ints:
    starts = np.concatenate(([0], np.cumsum(packing.sizes)[:-1]))
    return np.add.reduceat(values[packing.sample_ids], starts)
