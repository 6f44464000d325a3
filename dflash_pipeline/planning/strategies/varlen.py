"""`varlen`: documents end to end in one row, nothing padded; for attention that keeps documents apart.

Each random window of samples, sorted by length, is cut into strata as long as the window has steps; a step takes one
sample of each stratum, drawn at random. So a step's companions are as new as a shuffle's, while its lengths, and with
them its cost, are the corpus' own. Inside a step the dearest sample goes first, each to the slot of least cost that
still has room for its tokens (longest processing time first: R. L. Graham, "Bounds on multiprocessing timing
anomalies", SIAM J. Appl. Math. 17, 1969); then swaps level the slots out. What has room nowhere waits for the next
step.
"""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.batches import Batches
from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.keys import Purpose, key_of, share_of, stream
from dflash_pipeline.planning.packing import Floats, Ints, Packing, one_after_another
from dflash_pipeline.planning.strata import balanced_slots
from dflash_pipeline.planning.windows import random_windows

LEVELS = 1023
"""Costs are told apart to a thousandth of the dearest when samples are ordered inside a step."""
SWAPS_A_SLOT = 1


def pack(samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Packing:
    base = stream(spec.seed, epoch, Purpose.SAMPLES)
    windows = random_windows(samples.num_tokens, longest=longest, token_budget=spec.token_budget, base=base)
    per_length = 0.0 if spec.cost.quadratic_length is None else 1 / spec.cost.quadratic_length
    sizes, tokens = _deal(
        windows.sample_ids,
        windows.starts,
        samples.num_tokens,
        samples.num_supervised,
        (per_length, spec.cost.anchor_cost),
        (spec.slots_per_step, spec.token_budget),
        stream(spec.seed, epoch, Purpose.STEPS),
    )
    return one_after_another(windows.sample_ids, sizes, tokens)


def arrange(batches: Batches, spec: BatchingSpec, epoch: int) -> Ints:
    """Steps as they were dealt; their slots so that each rank's sum is alike."""
    slots, count = spec.slots_per_step, batches.sizes.size
    full = count // slots * slots
    head = balanced_slots(np.arange(full).reshape(-1, slots), batches.cost, spec, epoch).ravel()
    return np.concatenate((head, np.arange(full, count)))


@compiled
def _cost(sample: int, lengths: Ints, supervised: Ints, price: tuple[float, float]) -> float:
    """Of one sample: `price` is one over the quadratic length, and the cost of a supervised token."""
    length = lengths[sample]
    cost = float(length * (1.0 + length * price[0]))
    # Samples come in random order: each array that is not looked into is a miss of the cache less.
    return cost if price[1] == 0.0 else cost + supervised[sample] * price[1]


@compiled
def _deal(
    ids: Ints,
    starts: Ints,
    lengths: Ints,
    supervised: Ints,
    price: tuple[float, float],
    room_of_step: tuple[int, int],
    base: np.uint64,
) -> tuple[Ints, Ints]:
    """Put `ids` in the order slot by slot, step by step; samples and tokens of each slot.

    `room_of_step` is slots of a step and token budget of a slot.
    """
    slots, token_budget = room_of_step
    num_steps, share, dearest, most = _steps_of_windows(ids, starts, lengths, supervised, price, room_of_step)
    chosen, costs = np.empty(most, dtype=np.int64), np.empty(most)
    ordered, ordered_costs, placed_costs = np.empty(most, dtype=np.int64), np.empty(most), np.empty(most)
    slot_of, ends = np.empty(most, dtype=np.int64), np.empty(slots + 1, dtype=np.int64)
    load, room = np.empty(slots), np.empty(slots, dtype=np.int64)
    sizes = np.empty(ids.size + slots, dtype=np.int64)
    tokens = np.empty(ids.size + slots, dtype=np.int64)
    done = batches = waiting = 0
    window, step, dealt = -1, 0, ids[:0]
    while done < ids.size:
        count = waiting
        # Those that wait fill a step of their own once they are enough for it, or none but they are left.
        last = window == num_steps.size - 1 and step == num_steps[window]
        if not last and costs[:waiting].sum() < share:
            if window < 0 or step == num_steps[window]:
                window, step = window + 1, 0
                dealt = _stratified(ids[starts[window] : starts[window + 1]], num_steps[window], base, starts[window])
            for at in range(step, dealt.size, num_steps[window]):
                chosen[count] = dealt[at]
                costs[count] = _cost(dealt[at], lengths, supervised, price)
                count += 1
            step += 1
        _dearest_first(chosen[:count], costs, LEVELS / dearest, ordered, ordered_costs)
        load[:], room[:], ends[:] = 0.0, token_budget, 0
        for k in range(count):
            length = lengths[ordered[k]]
            best = _cheapest_with_room(load, room, length)
            slot_of[k] = best
            if best >= 0:
                load[best] += ordered_costs[k]
                room[best] -= length
                ends[best + 1] += 1
        for s in range(slots):
            sizes[batches + s] = ends[s + 1]
            ends[s + 1] += ends[s]
        waiting, placed = 0, ends[slots]
        here = ids[done : done + placed]  # What stood there has been dealt.
        for k in range(count):
            s = slot_of[k]
            if s >= 0:
                here[ends[s]], placed_costs[ends[s]] = ordered[k], ordered_costs[k]
                ends[s] += 1
            else:
                chosen[waiting], costs[waiting] = ordered[k], ordered_costs[k]
                waiting += 1
        _level_out(here, placed_costs, ends, load, room, lengths)
        used = 0
        for s in range(slots):
            if sizes[batches + s]:
                sizes[batches + used], tokens[batches + used] = sizes[batches + s], token_budget - room[s]
                used += 1
        batches += used
        done += placed
    return sizes[:batches].copy(), tokens[:batches].copy()


@compiled
def _cheapest_with_room(load: Floats, room: Ints, length: int) -> int:
    """The first slot of least cost that has room, or -1. Two passes without a branch that could be guessed wrong."""
    least = np.inf
    for s in range(load.size):
        least = min(least, load[s] if room[s] >= length else np.inf)
    for s in range(load.size):
        if load[s] == least and room[s] >= length:
            return s
    return -1


@compiled
def _steps_of_windows(
    ids: Ints, starts: Ints, lengths: Ints, supervised: Ints, price: tuple[float, float], room_of_step: tuple[int, int]
) -> tuple[Ints, float, float, int]:
    """Steps of each window; the cost that a step can hold; cost of the dearest sample; most samples held at a time."""
    slots, token_budget = room_of_step
    num_steps = np.empty(starts.size - 1, dtype=np.int64)
    full, cheapest, dearest, most = np.float64(token_budget) * slots, np.inf, 0.0, 0
    for w in range(num_steps.size):
        total, size = 0.0, starts[w + 1] - starts[w]
        for i in range(starts[w], starts[w + 1]):
            cost = _cost(ids[i], lengths, supervised, price)
            total += cost
            cheapest, dearest = min(cheapest, cost), max(dearest, cost)
        # No more steps than give each slot a sample.
        num_steps[w] = max(1, min(int(np.ceil(total / full)), size // slots))
        most = max(most, size // num_steps[w] + 1)
    return num_steps, full, dearest, most + slots + 2 + int(full / cheapest)


@compiled
def _stratified(window: Ints, num_steps: int, base: np.uint64, first: int) -> Ints:
    """The window with each run of `num_steps` samples shuffled; step s takes places s, s + num_steps, …"""
    dealt = window.copy()
    for low in range(0, dealt.size, num_steps):
        # The last run is short; those steps that get one of it are drawn too.
        high = min(low + num_steps, dealt.size)
        for i in range(high - 1, low, -1):
            j = low + share_of(key_of(base, first + i), i - low + 1)
            dealt[i], dealt[j] = dealt[j], dealt[i]
    return dealt


@compiled
def _dearest_first(chosen: Ints, costs: Floats, per_level: float, into: Ints, costs_into: Floats) -> None:
    """Samples by falling cost, in `LEVELS` levels, equals as they come."""
    ends = np.zeros(LEVELS + 2, dtype=np.int64)
    for k in range(chosen.size):
        ends[LEVELS - np.int64(costs[k] * per_level) + 1] += 1
    for k in range(LEVELS + 1):
        ends[k + 1] += ends[k]
    for k in range(chosen.size):
        level = LEVELS - np.int64(costs[k] * per_level)
        into[ends[level]], costs_into[ends[level]] = chosen[k], costs[k]
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
