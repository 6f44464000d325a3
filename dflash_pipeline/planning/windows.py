"""Random windows of samples, each sorted by length from the longest down: neighbours of like length, new each epoch.

A sample's window and its place among samples of its length come from its key alone, so no window depends on who is in
the others. When there are many, samples are scattered to chunks of `WINDOWS_A_CHUNK` windows first and then inside each
to its windows, so that no pass writes to more streams than the processor keeps apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.keys import key_of, share_of
from dflash_pipeline.planning.packing import Ints, usable_ids
from dflash_pipeline.planning.radix import sort_with

SAMPLES_A_WINDOW = 14_000
"""Padding lost by sorting inside windows grows with their number: 0.2 % at this size, whatever the corpus."""
FEWEST_WINDOWS = 8
BUDGETS_A_WINDOW = 150
"""A small corpus gets several windows too, or the same samples would always meet, as long as each window fills that
many micro-batches: 0.8 % of padding at most."""
WINDOWS_A_CHUNK = 256
TIE_BITS = 8
"""Bits of the key by which samples of one length are shuffled."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Windows:
    """`sample_ids[starts[w]:starts[w + 1]]` is window w, longest first."""

    sample_ids: Ints
    starts: Ints


def random_windows(lengths: Ints, *, longest: int, token_budget: int, base: np.uint64) -> Windows:
    """Windows over all samples of 1 to `longest` tokens; `lengths` are indexed by sample id, `base` is a `stream`."""
    usable, tokens = lengths.size, int(lengths.sum())
    if lengths.min() < 1 or lengths.max() > longest:
        ids = usable_ids(lengths, longest)
        usable, tokens = ids.size, int(lengths[ids].sum())
    few = min(FEWEST_WINDOWS, tokens // (token_budget * BUDGETS_A_WINDOW))
    num_windows = max(1, few, round(usable / SAMPLES_A_WINDOW))
    ids, starts = _scatter(lengths, longest, base, num_windows)
    _sort_windows(ids, starts, lengths, longest, base)
    return Windows(sample_ids=ids, starts=starts)


@compiled
def _scatter(lengths: Ints, longest: int, base: np.uint64, num_windows: int) -> tuple[Ints, Ints]:
    starts = np.zeros(num_windows + 1, dtype=np.int64)
    for i in range(lengths.size):
        if 0 < lengths[i] <= longest:
            starts[share_of(key_of(base, i), num_windows) + 1] += 1
    starts = np.cumsum(starts)
    ids = np.empty(starts[num_windows], dtype=np.int64)
    if num_windows <= WINDOWS_A_CHUNK:
        cursor = starts[:-1].copy()
        for i in range(lengths.size):
            if 0 < lengths[i] <= longest:
                window = share_of(key_of(base, i), num_windows)
                ids[cursor[window]] = i
                cursor[window] += 1
        return ids, starts
    by_chunk = np.empty_like(ids)
    chunk_cursor = starts[:-1:WINDOWS_A_CHUNK].copy()
    for i in range(lengths.size):
        if 0 < lengths[i] <= longest:
            chunk = share_of(key_of(base, i), num_windows) // WINDOWS_A_CHUNK
            by_chunk[chunk_cursor[chunk]] = i
            chunk_cursor[chunk] += 1
    cursor = starts[:-1].copy()
    for i in by_chunk:
        window = share_of(key_of(base, i), num_windows)
        ids[cursor[window]] = i
        cursor[window] += 1
    return ids, starts


@compiled
def _sort_windows(ids: Ints, starts: Ints, lengths: Ints, longest: int, base: np.uint64) -> None:
    bits = TIE_BITS
    while (longest >> (bits - TIE_BITS)) > 0:
        bits += 1
    for w in range(starts.size - 1):
        window = ids[starts[w] : starts[w + 1]]
        keys = np.empty(window.size, dtype=np.uint64)
        for i in range(window.size):
            tie = key_of(base, window[i]) & np.uint64((1 << TIE_BITS) - 1)
            keys[i] = (np.uint64(longest - lengths[window[i]]) << np.uint64(TIE_BITS)) | tie
        sort_with(keys, window, bits)
