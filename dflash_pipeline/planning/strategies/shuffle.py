"""`shuffle`: a fresh random order each epoch, cut where the budget is full. Most diverse, most padding: a baseline."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.planning.order import Purpose, shuffled
from dflash_pipeline.planning.packing import Ints, Packing, longest_of_each, pack_in_order


def pack(sample_ids: Ints, lengths: Ints, spec: BatchingSpec, epoch: int) -> Packing:
    order = np.searchsorted(sample_ids, shuffled(sample_ids, seed=spec.seed, epoch=epoch, purpose=Purpose.SAMPLES))
    sizes = pack_in_order(lengths[order], token_budget=spec.token_budget)
    return Packing(sample_ids=sample_ids[order], sizes=sizes, padded_length=longest_of_each(lengths[order], sizes))
