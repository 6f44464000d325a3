"""The exact histogram of a corpus' lengths."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.corpus import LengthStatistics, SampleLengths

_COUNTED_BELOW = 2**24
"""Lengths below it are counted in a table, which takes a pass; longer ones are sorted."""


def length_statistics(samples: SampleLengths) -> LengthStatistics:
    """Unique lengths and their counts. Samples without a token are left out: they can't be trained on."""
    tokens = samples.num_tokens[samples.num_tokens > 0]
    if tokens.size and tokens.max() < _COUNTED_BELOW:
        held = np.bincount(tokens)
        lengths = np.flatnonzero(held)
        counts = held[lengths]
    else:
        lengths, counts = np.unique(tokens, return_counts=True)
    return LengthStatistics(
        snapshot=samples.snapshot,
        lengths=tuple(lengths.tolist()),
        counts=tuple(counts.tolist()),
        num_supervised_tokens=int(samples.num_supervised.sum()),
    )
