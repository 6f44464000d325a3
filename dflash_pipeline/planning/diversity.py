"""How good an epoch is: what padding and stragglers cost, and how much its steps resemble the corpus and each other.

Definitions: docs/batching.md. All are over every step and every sample, no estimate from some of them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest, Floats
from dflash_pipeline.planning.cost import documents_cost, padded_cost, sample_costs
from dflash_pipeline.planning.packing import Ints

CELLS_AT_ONCE = 2**22
"""Cells of the (steps x lengths) table held at a time: 32 MiB."""


def overall_efficiency(manifest: EpochManifest, samples: SampleLengths, cost: CostModel, *, num_ranks: int) -> float:
    """Cost of the samples themselves / cost that all ranks pay when each waits for the slowest of its step.

    Both by `cost`, which may be another than the one the epoch was planned with. Rank r runs slots r, r + num_ranks, …
    """
    rank_costs = batch_costs(manifest, samples, cost).reshape(manifest.num_steps, -1, num_ranks).sum(axis=1)
    paid = num_ranks * float(rank_costs.max(axis=1).sum())
    scheduled = np.delete(np.arange(samples.num_tokens.size), manifest.dropped)
    return float(sample_costs(samples, scheduled, cost).sum()) / paid


def rank_balance(manifest: EpochManifest, samples: SampleLengths, cost: CostModel, *, num_ranks: int) -> float:
    """Cost of all ranks / cost if each took as long as the slowest of its step, in (0, 1]: what waiting leaves."""
    rank_costs = batch_costs(manifest, samples, cost).reshape(manifest.num_steps, -1, num_ranks).sum(axis=1)
    return float(rank_costs.sum()) / (num_ranks * float(rank_costs.max(axis=1).sum()))


def batch_costs(manifest: EpochManifest, samples: SampleLengths, cost: CostModel) -> Floats:
    """Cost of each micro-batch by `cost`, shape `[num_steps, slots_per_step]`."""
    if manifest.layout == "documents":
        squares = np.add.reduceat(
            samples.num_tokens[manifest.sample_ids].astype(np.float64) ** 2, manifest.offsets[:-1]
        )
        of_shape = squares.reshape(manifest.padded_length.shape)
        return documents_cost(manifest.num_tokens, of_shape, manifest.supervised_tokens, cost)
    return padded_cost(manifest.batch_sizes, manifest.padded_length, manifest.supervised_tokens, cost)


def length_distance(manifest: EpochManifest, samples: SampleLengths) -> float:
    """Mean over steps of the 1-Wasserstein distance, in tokens, between token-weighted lengths of step and corpus."""
    step_of, ids = _steps_and_ids(manifest)
    unique, index = np.unique(samples.num_tokens[ids], return_inverse=True)
    whole = np.bincount(index, weights=unique[index])
    corpus = np.cumsum(whole / whole.sum())
    widths = np.diff(unique, append=unique[-1])
    total, rows = 0.0, max(1, CELLS_AT_ONCE // unique.size)
    bounds = np.searchsorted(step_of, np.arange(0, manifest.num_steps + rows, rows))
    for first, (start, end) in enumerate(pairwise(bounds.tolist())):
        steps, here = min(rows, manifest.num_steps - first * rows), index[start:end]
        cells = (step_of[start:end] - first * rows) * unique.size + here
        table = np.bincount(cells, weights=unique[here], minlength=steps * unique.size)
        laws: Floats = np.cumsum(table.reshape(steps, unique.size), axis=1)
        total += float((np.abs(laws / laws[:, -1:] - corpus) * widths).sum())
    return total / manifest.num_steps


def pair_repetition(before: EpochManifest, manifest: EpochManifest) -> float:
    """Of all pairs of samples that share a micro-batch in the epoch before, the share that does so again."""
    first, second = _batch_of_each(before), _batch_of_each(manifest)
    scheduled = (first >= 0) & (second >= 0)
    together = first[scheduled] * (second.max() + 1) + second[scheduled]
    pairs = _pairs(np.unique(first[first >= 0], return_counts=True)[1])
    return _pairs(np.unique(together, return_counts=True)[1]) / pairs if pairs else 0.0


def _pairs(counts: Ints) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _steps_and_ids(manifest: EpochManifest) -> tuple[Ints, Ints]:
    """For each scheduled sample its step (ascending) and its id, fillers aside."""
    batch = np.repeat(np.arange(manifest.offsets.size - 1), np.diff(manifest.offsets))
    real = ~manifest.filler.ravel()[batch]
    return batch[real] // manifest.slots_per_step, manifest.sample_ids[real]


def _batch_of_each(manifest: EpochManifest) -> Ints:
    """Micro-batch of every sample of the corpus, -1 for dropped ones."""
    batch = np.repeat(np.arange(manifest.offsets.size - 1), np.diff(manifest.offsets))
    real = ~manifest.filler.ravel()[batch]
    owner = np.full(manifest.num_corpus_samples, -1, dtype=np.int64)
    owner[manifest.sample_ids[real]] = batch[real]
    return owner
