"""The exact histogram of a corpus' lengths."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.corpus import LengthStatistics, SampleLengths


def length_statistics(samples: SampleLengths) -> LengthStatistics:
    """Unique lengths and their counts. Samples without a token are left out: they can't be trained on."""
    tokens = samples.num_tokens[samples.num_tokens > 0]
    lengths, counts = np.unique(tokens, return_counts=True)
    return LengthStatistics(
        snapshot=samples.snapshot,
        lengths=tuple(lengths.tolist()),
        counts=tuple(counts.tolist()),
        num_supervised_tokens=int(samples.num_supervised.sum()),
    )
