"""What an epoch is worth, whoever planned it: the same figures for ours and for peers. Definitions: docs/batching.md.

All are over every step and every sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from batching_specs import COST, RANKS, TOKEN_BUDGET

from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.diversity import length_distance, overall_efficiency, pair_repetition


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """Efficiency, diversity and limits of one epoch."""

    steps: int
    padding: float
    """Real tokens / padded tokens."""
    fill: float
    """Real tokens / (micro-batches x token budget)."""
    overall: float
    """Cost needed / cost paid with padding and stragglers, attention as dear as the rest at 24,576 tokens."""
    w1t: float
    """Distance of a step's token-weighted lengths from the corpus', in tokens."""
    random_w1t: float
    """The same for as many samples a step drawn at random: what a pure shuffle gives."""
    pairs: float
    """Share of pairs of an epoch that share a micro-batch in the next one too."""
    above_cap: int
    """Padded tokens above the token budget, summed over micro-batches."""
    dropped: int


def worth(first: EpochManifest, second: EpochManifest, samples: SampleLengths) -> Worth:
    """Of epoch `first`; `second` is the epoch after it."""
    summary = first.summary()
    return Worth(
        steps=summary.num_steps,
        padding=summary.padding_efficiency,
        fill=summary.real_tokens / (summary.num_micro_batches * TOKEN_BUDGET),
        overall=overall_efficiency(first, samples, COST, num_ranks=RANKS),
        w1t=length_distance(first, samples),
        random_w1t=length_distance(_drawn_at_random(first), samples),
        pairs=pair_repetition(first, second),
        above_cap=int(np.maximum(first.padded_tokens - TOKEN_BUDGET, 0).sum()),
        dropped=summary.num_dropped,
    )


def _drawn_at_random(manifest: EpochManifest) -> EpochManifest:
    """As many samples in each step, any of them. Its tokens and costs mean nothing."""
    real = ~np.repeat(manifest.filler.ravel(), np.diff(manifest.offsets))
    ids = manifest.sample_ids.copy()
    ids[real] = np.random.default_rng(0).permutation(ids[real])
    return replace(manifest, sample_ids=ids)
