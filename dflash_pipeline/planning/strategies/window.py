"""`window`: random windows, sorted inside, cut at a cost, dealt to steps by length and cost.

Padding as low as that of sorted batches, companions as new as a shuffle's within a window, and steps that each hold
the whole range of lengths. The number of samples of a micro-batch is what brings its cost nearest to the target; the
token budget stays a hard limit.
"""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.batches import Batches
from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.keys import Purpose, stream
from dflash_pipeline.planning.packing import Ints, Packing, one_after_another, starts_of
from dflash_pipeline.planning.strata import stratified
from dflash_pipeline.planning.windows import random_windows

ACCUMULATED_TARGET = 0.98
"""Share of the budget that a micro-batch aims at, in cost, where each rank runs several of them in a step.

Sums of several are alike anyway, so a little balance can be given for more micro-batches to choose from, which brings a
step's lengths nearer to the corpus' (figures: docs/batching.md). With one a rank the target is the whole budget.
"""


def pack(samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Packing:
    base = stream(spec.seed, epoch, Purpose.SAMPLES)
    windows = random_windows(samples.num_tokens, longest=longest, token_budget=spec.token_budget, base=base)
    ids, starts = windows.sample_ids, windows.starts
    rules = (
        spec.token_budget,
        spec.token_budget * (1.0 if spec.micro_batches_per_rank == 1 else ACCUMULATED_TARGET),
        0.0 if spec.cost.quadratic_length is None else 1 / spec.cost.quadratic_length,
        spec.cost.anchor_cost,
    )
    sizes = np.empty(ids.size, dtype=np.int64)
    sizes = sizes[: _cut(ids, starts, samples.num_tokens, samples.num_supervised, *rules, sizes)].copy()
    return one_after_another(ids, sizes, samples.num_tokens[ids[starts_of(sizes)]])


def arrange(batches: Batches, spec: BatchingSpec, epoch: int) -> Ints:
    return stratified(batches.padded_length, batches.cost, spec, epoch)


@compiled
def _cut(
    ids: Ints,
    starts: Ints,
    lengths: Ints,
    supervised: Ints,
    token_budget: int,
    target: float,
    per_length: float,
    anchor_cost: float,
    sizes: Ints,
) -> int:
    """Number of micro-batches; their sizes go to the front of `sizes`."""
    batches = 0
    for w in range(starts.size - 1):
        at = starts[w]
        while at < starts[w + 1]:
            length = lengths[ids[at]]  # The longest of what is left: it is what the others are padded to.
            one = length * (1 + length * per_length)
            most = min(token_budget // length, starts[w + 1] - at)
            if anchor_cost == 0.0:
                count = max(1, min(most, np.int64(target / one + 0.5)))
            else:
                count, cost = 1, one + anchor_cost * supervised[ids[at]]
                while count < most:
                    grown = cost + one + anchor_cost * supervised[ids[at + count]]
                    if grown - target > target - cost:
                        break
                    count, cost = count + 1, grown
            sizes[batches] = count
            batches += 1
            at += count
    return batches
