"""Micro-batches with what they hold and cost: what steps are made of."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.cost import documents_cost, padded_cost
from dflash_pipeline.planning.packing import Floats, Ints, Packing, gather, starts_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batches:
    """A packing, and of each of its micro-batches tokens, supervised tokens and cost."""

    sample_ids: Ints
    starts: Ints
    sizes: Ints
    padded_length: Ints
    num_tokens: Ints
    supervised: Ints
    cost: Floats


def weigh(packing: Packing, samples: SampleLengths, spec: BatchingSpec) -> Batches:
    """Count and cost each micro-batch; `samples` are indexed by sample id."""
    num_tokens, supervised = np.zeros_like(packing.sizes), np.zeros_like(packing.sizes)
    squares = np.zeros(packing.sizes.size)
    _add_up(
        packing.sample_ids,
        packing.starts,
        packing.sizes,
        samples.num_tokens,
        samples.num_supervised,
        num_tokens,
        supervised,
        squares,
    )
    cost = (
        documents_cost(num_tokens, squares, supervised, spec.cost)
        if spec.layout == "documents"
        else padded_cost(packing.sizes, packing.padded_length, supervised, spec.cost)
    )
    return Batches(
        sample_ids=packing.sample_ids,
        starts=packing.starts,
        sizes=packing.sizes,
        padded_length=packing.padded_length,
        num_tokens=num_tokens,
        supervised=supervised,
        cost=cost,
    )


def taken(batches: Batches, order: Ints) -> Batches:
    """These micro-batches, in this order; one may be asked for more than once, or left out."""
    columns = {
        f.name: getattr(batches, f.name)[order] for f in fields(Batches) if f.name not in ("sample_ids", "starts")
    }
    ids = gather(batches.sample_ids, batches.starts[order], columns["sizes"])
    return Batches(sample_ids=ids, starts=starts_of(columns["sizes"]), **columns)


@compiled
def _add_up(
    ids: Ints,
    starts: Ints,
    sizes: Ints,
    lengths: Ints,
    supervised: Ints,
    num_tokens: Ints,
    num_supervised: Ints,
    squares: Floats,
) -> None:
    for m in range(sizes.size):
        tokens, trained, square = 0, 0, 0.0
        for i in range(starts[m], starts[m] + sizes[m]):
            length = lengths[ids[i]]
            tokens += length
            trained += supervised[ids[i]]
            square += np.float64(length) * np.float64(length)
        num_tokens[m], num_supervised[m], squares[m] = tokens, trained, square
