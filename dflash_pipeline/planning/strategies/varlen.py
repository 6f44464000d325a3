"""`varlen`: documents end to end in one row, nothing padded; for attention that keeps documents apart.

Samples come in a fresh random order and are cut into steps of equal cost. Inside a step the dearest sample goes first,
each to the slot of least cost that still has room for its tokens (longest processing time first: R. L. Graham, "Bounds
on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). What has room nowhere waits for the next step.
"""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.batches import Batches
from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.cost import sample_costs
from dflash_pipeline.planning.keys import Purpose
from dflash_pipeline.planning.order import shuffled
from dflash_pipeline.planning.packing import Floats, Ints, Packing, starts_of, usable_ids
from dflash_pipeline.planning.strata import balanced_slots

LEVELS = 1023
"""Costs are told apart to a thousandth of the dearest when samples are ordered inside a step."""
SWAPS_A_SLOT = 1


def pack(samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Packing:
    ids = usable_ids(samples.num_tokens, longest)
    ids = shuffled(ids, seed=spec.seed, epoch=epoch, purpose=Purpose.SAMPLES)
    lengths = samples.num_tokens[ids]
    costs = sample_costs(samples, ids, spec.cost)
    order, sizes = _deal(lengths, costs, spec.slots_per_step, spec.token_budget)
    packed = ids[order]
    tokens = np.add.reduceat(samples.num_tokens[packed], starts_of(sizes))
    return Packing(sample_ids=packed, sizes=sizes, padded_length=tokens)


def arrange(batches: Batches, spec: BatchingSpec, epoch: int) -> Ints:
    """Steps as they were dealt; their slots so that each rank's sum is alike."""
    slots, count = spec.slots_per_step, batches.sizes.size
    full = count // slots * slots
    head = balanced_slots(np.arange(full).reshape(-1, slots), batches.cost, spec, epoch).ravel()
    return np.concatenate((head, np.arange(full, count)))


@compiled
def _deal(lengths: Ints, costs: Floats, slots: int, token_budget: int) -> tuple[Ints, Ints]:
    """The samples slot by slot, step by step, as places in `lengths`; and how many each slot holds."""
    n = lengths.size
    full = np.float64(token_budget) * slots
    remaining = costs.sum()
    steps_left = np.ceil(remaining / full)
    most: int = min(n, slots + 2 + int(full / costs.min()))
    order, sizes = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    chosen, sorted_chosen, cost_of = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most)
    slot_of, ends = np.empty(most, dtype=np.int64), np.empty(slots + 1, dtype=np.int64)
    load, room = np.empty(slots), np.empty(slots, dtype=np.int64)
    per_level = LEVELS / costs.max()
    read = done = batches = waiting = 0
    while done < n:
        # Equal steps, however much of the cost is left; when room was short there are more of them than expected.
        share = min(remaining / max(steps_left, 1.0), full)
        count, taken = waiting, 0.0
        for k in range(waiting):
            taken += costs[chosen[k]]
        while read < n and (count < slots or taken + 0.5 * costs[read] < share):
            chosen[count] = read
            taken += costs[read]
            count, read = count + 1, read + 1
        _dearest_first(chosen[:count], costs, per_level, sorted_chosen)
        load[:], room[:], ends[:] = 0.0, token_budget, 0
        for k in range(count):
            length, best, least = lengths[sorted_chosen[k]], -1, np.inf
            for s in range(slots):
                if load[s] < least and room[s] >= length:
                    best, least = s, load[s]
            slot_of[k] = best
            if best >= 0:
                load[best] += costs[sorted_chosen[k]]
                room[best] -= length
                ends[best + 1] += 1
        for s in range(slots):
            if ends[s + 1]:
                sizes[batches] = ends[s + 1]
                batches += 1
            ends[s + 1] += ends[s]
        waiting = 0
        step = order[done : done + ends[slots]]
        for k in range(count):
            s = slot_of[k]
            if s >= 0:
                step[ends[s]] = sorted_chosen[k]
                cost_of[ends[s]] = costs[sorted_chosen[k]]
                remaining -= cost_of[ends[s]]
                ends[s] += 1
            else:  # No room for it: it goes first in the next step.
                chosen[waiting] = sorted_chosen[k]
                waiting += 1
        _level_out(step, cost_of, ends, load, room, lengths)
        done += step.size
        steps_left -= 1.0
    return order, sizes[:batches].copy()


@compiled
def _dearest_first(chosen: Ints, costs: Floats, per_level: float, into: Ints) -> None:
    """Places by falling cost, in `LEVELS` levels, equals as they come."""
    ends = np.zeros(LEVELS + 2, dtype=np.int64)
    for place in chosen:
        ends[LEVELS - np.int64(costs[place] * per_level) + 1] += 1
    for k in range(LEVELS + 1):
        ends[k + 1] += ends[k]
    for place in chosen:
        level = LEVELS - np.int64(costs[place] * per_level)
        into[ends[level]] = place
        ends[level] += 1


@compiled
def _level_out(step: Ints, cost_of: Floats, ends: Ints, load: Floats, room: Ints, lengths: Ints) -> None:
    """Swap samples between the dearest and the cheapest slot, as long as it lowers the dearer of the two.

    Slot s holds `step[ends[s - 1]:ends[s]]`. Each swap takes the pair that comes nearest to halving the difference.
    """
    slots = load.size
    for _ in range(SWAPS_A_SLOT * slots):
        high, low = np.argmax(load), np.argmin(load)
        gap = load[high] - load[low]
        best, at_high, at_low = 0.5 * gap, -1, -1
        for i in range(ends[high - 1] if high else 0, ends[high]):
            for j in range(ends[low - 1] if low else 0, ends[low]):
                off = abs(cost_of[i] - cost_of[j] - 0.5 * gap)
                if off < best:
                    longer = lengths[step[i]] - lengths[step[j]]
                    if longer <= room[low] and -longer <= room[high]:
                        best, at_high, at_low = off, i, j
        if at_high < 0 or best > 0.45 * gap:
            return
        longer = lengths[step[at_high]] - lengths[step[at_low]]
        room[low] -= longer
        room[high] += longer
        moved = cost_of[at_high] - cost_of[at_low]
        load[low] += moved
        load[high] -= moved
        step[at_high], step[at_low] = step[at_low], step[at_high]
        cost_of[at_high], cost_of[at_low] = cost_of[at_low], cost_of[at_high]
