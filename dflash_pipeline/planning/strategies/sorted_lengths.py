"""`sorted`: neighbours in length share a micro-batch. Least padding, no diversity: an honest baseline.

Composition never changes: ties stay in order of sample id. Only the order in which steps are served is shuffled.
"""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.planning.order import Purpose, shuffled
from dflash_pipeline.planning.packing import Ints, Packing, longest_of_each, pack_in_order, reorder


def pack(sample_ids: Ints, lengths: Ints, spec: BatchingSpec, epoch: int) -> Packing:
    order = np.argsort(lengths, kind="stable")
    sizes = pack_in_order(lengths[order], token_budget=spec.token_budget)
    packing = Packing(sample_ids=sample_ids[order], sizes=sizes, padded_length=longest_of_each(lengths[order], sizes))
    return reorder(packing, _steps_shuffled(sizes.size, spec, epoch))


def _steps_shuffled(num_batches: int, spec: BatchingSpec, epoch: int) -> Ints:
    """Groups of `slots_per_step` neighbours in random order; an unfilled one stays last, for the tail rule."""
    full = num_batches // spec.slots_per_step
    steps = shuffled(np.arange(full), seed=spec.seed, epoch=epoch, purpose=Purpose.STEPS)
    slots = np.arange(spec.slots_per_step)
    head = (steps[:, None] * spec.slots_per_step + slots).ravel()
    return np.concatenate((head, np.arange(full * spec.slots_per_step, num_batches)))
