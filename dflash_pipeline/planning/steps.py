"""Micro-batches to full steps: every slot of every step filled, nothing lost on the way."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.packing import Ints, Packing, longest_of_each


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
    """Halve the largest micro-batch `times` times, in place; stop early when only single samples are left."""
    pieces = {m: [int(size)] for m, size in enumerate(packing.sizes.tolist())} if times else {}
    heap = [(-int(size), m) for m, size in enumerate(packing.sizes.tolist())] if times else []
    heapq.heapify(heap)
    for _ in range(times):
        negative, m = heapq.heappop(heap)
        if negative == -1:
            break
        pieces[m] = _halve_one(pieces[m], -negative)
        heapq.heappush(heap, (-max(pieces[m]), m))
    if not times:
        return packing
    sizes = np.array([size for m in range(packing.sizes.size) for size in pieces[m]], dtype=np.int64)
    parts = np.array([len(pieces[m]) for m in range(packing.sizes.size)])
    padded = (
        np.repeat(packing.padded_length, parts)
        if spec.padding == "boundary"
        else longest_of_each(lengths[packing.sample_ids], sizes)
    )
    return Packing(sample_ids=packing.sample_ids, sizes=sizes, padded_length=padded)


def _halve_one(pieces: list[int], size: int) -> list[int]:
    at = pieces.index(size)
    return [*pieces[:at], size - size // 2, size // 2, *pieces[at + 1 :]]


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
