"""Micro-batches to full steps: every slot of every step filled, nothing lost on the way."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.batches import Batches, taken
from dflash_pipeline.planning.packing import Ints, Packing, gather, starts_of


def halve_to_full_steps(packing: Packing, lengths: Ints, spec: BatchingSpec) -> Packing:
    """Make the number of micro-batches a multiple of `slots_per_step`, as far as halving can.

    `lengths` are indexed by sample id. The micro-batch with most samples is halved, the first of equals, until the
    steps are full or each holds a single sample. The halves cut off go to the end.
    """
    times = -packing.sizes.size % spec.slots_per_step
    if not times:
        return packing
    sizes, starts, origins = _halved(packing, times)
    padded_length = packing.padded_length[origins]
    if spec.padding == "batch-max":
        halved = np.flatnonzero(sizes != packing.sizes[origins])
        of_halved = lengths[gather(packing.sample_ids, starts[halved], sizes[halved])]
        reduce = np.add if spec.layout == "documents" else np.maximum
        padded_length[halved] = reduce.reduceat(of_halved, starts_of(sizes[halved]))
    return Packing(sample_ids=packing.sample_ids, starts=starts, sizes=sizes, padded_length=padded_length)


def _halved(packing: Packing, times: int) -> tuple[Ints, Ints, Ints]:
    """Sizes after the halving, where each micro-batch starts, and which one it comes from."""
    sizes = packing.sizes
    # No more than `times` of them are halved, so the largest `times` are all that need be looked at.
    candidates = np.argsort(-sizes, kind="stable")[:times].tolist()
    starts, cuts = packing.starts, sizes.copy()
    added = 0
    # Of each: size, start, and which one it comes from.
    held = {m: (int(sizes[m]), int(starts[m]), m) for m in candidates}
    largest = [(-held[m][0], m) for m in candidates]
    heapq.heapify(largest)
    while times and largest[0][0] < -1:
        _, m = heapq.heappop(largest)
        size, start, origin = held[m]
        cut = size // 2
        held[m] = (size - cut, start, origin)
        new = sizes.size + added
        held[new] = (cut, start + size - cut, origin)
        added += 1
        heapq.heappush(largest, (-(size - cut), m))
        heapq.heappush(largest, (-cut, new))
        times -= 1
    for m in candidates:
        cuts[m] = held[m][0]
    tail = np.array([held[sizes.size + i] for i in range(added)], dtype=np.int64).reshape(-1, 3)
    return (
        np.concatenate((cuts, tail[:, 0])),
        np.concatenate((starts, tail[:, 1])),
        np.concatenate((np.arange(sizes.size), tail[:, 2])),
    )


def with_fillers(batches: Batches, spec: BatchingSpec) -> tuple[Batches, npt.NDArray[np.bool_]]:
    """Fill the last step with copies of the cheapest micro-batch; also which ones are fillers.

    A filler has weight zero and costs a rank its time, so as little of it as possible.
    """
    count = batches.sizes.size
    missing = -count % spec.slots_per_step
    filler = np.zeros(count + missing, dtype=np.bool_)
    if not missing:
        return batches, filler
    filler[count:] = True
    copies = np.full(missing, int(np.argmin(batches.cost)), dtype=np.int64)
    return taken(batches, np.concatenate((np.arange(count), copies))), filler


def without_tail(batches: Batches, spec: BatchingSpec) -> tuple[Batches, Ints]:
    """Leave out the micro-batches of an unfilled last step; also the sample ids left out, ascending."""
    count = batches.sizes.size
    kept = count - count % spec.slots_per_step
    if kept == 0:
        raise Refused(
            f"dropping the tail would drop all: {count} micro-batches for {spec.slots_per_step} slots",
            where="batching.tail",
            fix="use tail: fill, or fewer slots per step",
        )
    left_out = taken(batches, np.arange(kept, count)).sample_ids
    return taken(batches, np.arange(kept)), np.sort(left_out)
