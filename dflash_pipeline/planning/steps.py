"""Micro-batches to full steps: every slot of every step filled, nothing lost on the way."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.packing import Ints, Packing, longest_of_each, places


def fill_steps(packing: Packing, lengths: Ints, spec: BatchingSpec) -> tuple[Packing, npt.NDArray[np.bool_]]:
    """Make the number of micro-batches a multiple of `slots_per_step`; also which of them are fillers.

    `lengths` is indexed by sample id. The micro-batches with most samples are halved, one after another; only when
    each holds a single sample do zero-weight copies fill the last step.
    """
    missing = -packing.sizes.size % spec.slots_per_step
    split = _split(packing, lengths, spec, missing)
    still_missing = -split.sizes.size % spec.slots_per_step
    filler = np.zeros(split.sizes.size + still_missing, dtype=np.bool_)
    if not still_missing:
        return split, filler
    filler[split.sizes.size :] = True
    return _with_copies(split, still_missing), filler


def drop_tail(packing: Packing, spec: BatchingSpec) -> tuple[Packing, Ints]:
    """Leave out the micro-batches of an unfilled last step; also the sample ids left out."""
    kept = packing.sizes.size - packing.sizes.size % spec.slots_per_step
    if kept == 0:
        raise Refused(
            f"dropping the tail would drop all: {packing.sizes.size} micro-batches for {spec.slots_per_step} slots",
            where="batching.tail",
            fix="use tail: fill, or fewer slots per step",
        )
    samples = int(packing.sizes[:kept].sum())
    head = Packing(
        sample_ids=packing.sample_ids[:samples],
        sizes=packing.sizes[:kept],
        padded_length=packing.padded_length[:kept],
    )
    return head, np.sort(packing.sample_ids[samples:])


def _split(packing: Packing, lengths: Ints, spec: BatchingSpec, times: int) -> Packing:
    """Halve the largest micro-batch `times` times, the first of equals; fewer when only single samples are left.

    The halves cut off go to the end, so that every step before the last keeps the micro-batches it was given.
    """
    if not times:
        return packing
    sizes = packing.sizes.tolist()
    starts = (np.cumsum(packing.sizes) - packing.sizes).tolist()
    origins = list(range(len(sizes)))
    largest = [(-size, m) for m, size in enumerate(sizes)]
    heapq.heapify(largest)
    while times and largest[0][0] < -1:
        _, m = heapq.heappop(largest)
        cut = sizes[m] // 2
        sizes[m] -= cut
        sizes.append(cut)
        starts.append(starts[m] + sizes[m])
        origins.append(origins[m])
        heapq.heappush(largest, (-sizes[m], m))
        heapq.heappush(largest, (-cut, len(sizes) - 1))
        times -= 1
    new_sizes = np.array(sizes, dtype=np.int64)
    ids = packing.sample_ids[places(np.array(starts, dtype=np.int64), new_sizes)]
    padded = packing.padded_length[origins] if spec.padding == "boundary" else longest_of_each(lengths[ids], new_sizes)
    return Packing(sample_ids=ids, sizes=new_sizes, padded_length=padded)


def _with_copies(packing: Packing, copies: int) -> Packing:
    """Append copies of the cheapest micro-batch: fillers cost a rank its time, so as little of it as possible."""
    cheapest = int(np.argmin(packing.sizes * packing.padded_length))
    start = int(packing.sizes[:cheapest].sum())
    ids = packing.sample_ids[start : start + int(packing.sizes[cheapest])]
    return Packing(
        sample_ids=np.concatenate((packing.sample_ids, np.tile(ids, copies))),
        sizes=np.concatenate((packing.sizes, np.repeat(packing.sizes[cheapest], copies))),
        padded_length=np.concatenate((packing.padded_length, np.repeat(packing.padded_length[cheapest], copies))),
    )
