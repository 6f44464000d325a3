"""`sorted`: neighbours in length share a micro-batch. Least padding, no diversity: an honest baseline.

Composition never changes: ties stay in order of sample id. Only the order in which steps are served is shuffled.
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
    pack_in_order,
    usable_ids,
)


def pack(samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Packing:
    ids = usable_ids(samples.num_tokens, longest)
    ids = ids[np.argsort(samples.num_tokens[ids], kind="stable")]
    lengths = samples.num_tokens[ids]
    sizes = pack_in_order(lengths, token_budget=spec.token_budget)
    return one_after_another(ids, sizes, longest_of_each(lengths, sizes))


def arrange(batches: Batches, spec: BatchingSpec, epoch: int) -> Ints:
    """Groups of `slots_per_step` neighbours in random order; those that fill no step come last, of any length."""
    slots, count = spec.slots_per_step, batches.sizes.size
    full, rest = divmod(count, slots)
    places = shuffled(np.arange(full + 1), seed=spec.seed, epoch=epoch, purpose=Purpose.SLOTS)
    last = np.arange(rest) + places[0] * slots
    steps = shuffled(np.arange(full), seed=spec.seed, epoch=epoch, purpose=Purpose.STEPS)
    groups = np.delete(np.arange(count), last).reshape(full, slots)
    return np.concatenate((groups[steps].ravel(), last))
