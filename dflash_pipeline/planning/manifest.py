"""One epoch's manifest from the lengths of a snapshot: a pure function of (lengths, spec, epoch)."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.batches import Batches, taken, weigh
from dflash_pipeline.planning.packing import Ints
from dflash_pipeline.planning.steps import halve_to_full_steps, with_fillers, without_tail
from dflash_pipeline.planning.strategies import STRATEGIES

MAX_NAMED = 20
"""Sample ids an error lists before it says how many more there are."""


def build_epoch_manifest(samples: SampleLengths, spec: BatchingSpec, *, epoch: int) -> EpochManifest:
    """Every micro-batch of epoch `epoch` (from 0). The same inputs give the same bytes on every machine.

    Samples without a token are listed as dropped; those above the token budget are refused by name, or dropped, as
    the spec says; with `tail: drop` so are those of an unfilled last step. Everything else is scheduled once.
    """
    longest, lengths = _longest_usable(samples, spec), samples.num_tokens
    batches = _in_order(samples, longest, spec, epoch)
    dropped = _unusable(lengths, longest)
    if spec.tail == "drop":
        batches, tail = without_tail(batches, spec)
        dropped = np.union1d(dropped, tail)
    batches, filler = with_fillers(batches, spec)
    shape = (filler.size // spec.slots_per_step, spec.slots_per_step)
    return EpochManifest(
        epoch=epoch,
        num_corpus_samples=int(lengths.size),
        slots_per_step=spec.slots_per_step,
        token_budget=spec.token_budget,
        layout=spec.layout,
        sample_ids=batches.sample_ids,
        offsets=np.concatenate(([0], np.cumsum(batches.sizes))),
        padded_length=batches.padded_length.reshape(shape),
        num_tokens=batches.num_tokens.reshape(shape),
        supervised_tokens=batches.supervised.reshape(shape),
        cost=batches.cost.reshape(shape),
        filler=filler.reshape(shape),
        dropped=dropped,
    )


def _in_order(samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Batches:
    """The strategy's micro-batches as they are served; those that fill no step come last."""
    rules = STRATEGIES[spec.strategy]
    packing = rules.pack(samples, longest, spec, epoch)
    if spec.tail == "fill":
        packing = halve_to_full_steps(packing, samples.num_tokens, spec)
    batches = weigh(packing, samples, spec)
    return taken(batches, rules.arrange(batches, spec, epoch))


def _longest_usable(samples: SampleLengths, spec: BatchingSpec) -> int:
    """The longest sample that can be scheduled; refuses when the spec wants longer ones refused, or nothing is left."""
    lengths = samples.num_tokens
    if spec.strategy == "bucket" and lengths.max() > spec.boundaries[-1]:
        raise Refused(
            f"{_named(np.flatnonzero(lengths > spec.boundaries[-1]))} longer than the last boundary "
            f"{spec.boundaries[-1]}",
            where="batching.boundaries",
            fix="optimise the boundaries for this snapshot",
        )
    longest, padded_up = spec.token_budget, ""
    if spec.padding == "boundary":
        longest = max((b for b in spec.boundaries if b <= spec.token_budget), default=0)
        padded_up = " when padded up to the boundary"
    if lengths.max() > longest and spec.overlong == "refuse":
        raise Refused(
            f"{_named(np.flatnonzero(lengths > longest))} above the token budget of {spec.token_budget}{padded_up}",
            where="batching.token_budget",
            fix="raise the budget, lower data.max_length so that they are truncated, or set batching.overlong: drop",
        )
    if _unusable(lengths, longest).size == lengths.size:
        raise Refused(
            f"none of {lengths.size} samples has a token and fits the budget of {spec.token_budget}",
            where="batching",
            fix="look at the lengths and raise the budget",
        )
    return longest


def _unusable(lengths: Ints, longest: int) -> Ints:
    """Ids of samples without a token or above `longest`, ascending."""
    if lengths.min() > 0 and lengths.max() <= longest:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero((lengths < 1) | (lengths > longest))


def _named(ids: Ints) -> str:
    listed = ", ".join(str(i) for i in ids[:MAX_NAMED].tolist())
    more = f" and {ids.size - MAX_NAMED} more" if ids.size > MAX_NAMED else ""
    return f"sample {listed} is" if ids.size == 1 else f"samples {listed}{more} are"
