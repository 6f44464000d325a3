"""`shuffle`: a fresh random order each epoch, cut where the budget is full. Most diverse, most padding: a baseline."""

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
    pack_in_order,
    usable_ids,
)


def pack(samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Packing:
    ids = usable_ids(samples.num_tokens, longest)
    ids = shuffled(ids, seed=spec.seed, epoch=epoch, purpose=Purpose.SAMPLES)
    lengths = samples.num_tokens[ids]
    sizes = pack_in_order(lengths, token_budget=spec.token_budget)
    return one_after_another(ids, sizes, longest_of_each(lengths, sizes))


def arrange(batches: Batches, spec: BatchingSpec, epoch: int) -> Ints:
    return np.arange(batches.sizes.size)
