"""`bucket`: samples of similar length, drawn at random within their bucket; micro-batches in random order.

With padding "batch-max" a micro-batch takes samples while its own longest leaves room, so the number of micro-batches
differs from epoch to epoch. With "boundary" the micro-batches of a bucket have one shape (the last may hold fewer).
"""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.batches import Batches
from dflash_pipeline.planning.keys import Purpose
from dflash_pipeline.planning.order import shuffled
from dflash_pipeline.planning.packing import (
    Ints,
    Packing,
    longest_of_each,
    one_after_another,
    pack_fixed,
    pack_in_order,
    usable_ids,
)


def pack(samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Packing:
    ids = usable_ids(samples.num_tokens, longest)
    ids = shuffled(ids, seed=spec.seed, epoch=epoch, purpose=Purpose.SAMPLES)
    lengths = samples.num_tokens[ids]
    bucket_of = np.searchsorted(spec.boundaries, lengths)
    packings = [
        _pack_bucket(ids[members], lengths[members], spec, boundary)
        for index, boundary in enumerate(spec.boundaries)
        if (members := np.flatnonzero(bucket_of == index)).size
    ]
    return one_after_another(
        np.concatenate([p.sample_ids for p in packings]),
        np.concatenate([p.sizes for p in packings]),
        np.concatenate([p.padded_length for p in packings]),
    )


def arrange(batches: Batches, spec: BatchingSpec, epoch: int) -> Ints:
    return shuffled(np.arange(batches.sizes.size), seed=spec.seed, epoch=epoch, purpose=Purpose.MICRO_BATCHES)


def _pack_bucket(ids: Ints, lengths: Ints, spec: BatchingSpec, boundary: int) -> Packing:
    if spec.padding == "boundary":
        sizes = pack_fixed(ids.size, per_batch=spec.token_budget // boundary)
        return one_after_another(ids, sizes, np.full(sizes.size, boundary, dtype=np.int64))
    sizes = pack_in_order(lengths, token_budget=spec.token_budget)
    return one_after_another(ids, sizes, longest_of_each(lengths, sizes))
