"""Spikes that are due to data: in different epochs, on the same samples, and on more of them than by chance. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from dflash_pipeline.contracts.events import SpikeRecord

MOST_CHANCE = 0.01
"""Of two spikes, that steps packed at random have so many samples in common."""


def samples_at_fault(spikes: Sequence[SpikeRecord], num_samples: int | None) -> dict[int, set[int]]:
    """By global step, the samples that a spike shares with one of another epoch; no key where there are none.

    The same batch again always counts. Otherwise `num_samples` of the corpus say what is chance: of n and m samples
    drawn from N, k are the same with a chance of at most C(n, k) (m / N)^k. Without N, one in common is enough.
    """
    places: dict[int, list[int]] = {}
    for place, spike in enumerate(spikes):
        for sample in spike.sample_ids:
            places.setdefault(sample, []).append(place)
    found: dict[int, set[int]] = {}
    for pair in {pair for together in places.values() for pair in combinations(together, 2)}:
        first, second = (spikes[place] for place in pair)
        if first.epoch != second.epoch and (common := _common(first, second, num_samples)):
            for spike in (first, second):
                found.setdefault(spike.global_step, set()).update(common)
    return found


def _common(first: SpikeRecord, second: SpikeRecord, num_samples: int | None) -> set[int]:
    """What both have; nothing when that may be chance."""
    one, other = set(first.sample_ids), set(second.sample_ids)
    common = one & other
    if one == other or num_samples is None:
        return common
    log_chance = math.log(math.comb(len(one), len(common))) + len(common) * math.log(len(other) / num_samples)
    return common if log_chance < math.log(MOST_CHANCE) else set()
