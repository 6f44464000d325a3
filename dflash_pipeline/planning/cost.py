"""What samples and micro-batches cost, by the rule of `CostModel`."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.packing import Floats, Ints


def padded_cost(num_samples: Ints | int, length: Ints, supervised: Ints, cost: CostModel) -> Floats:
    """Cost of `num_samples` samples that each run at `length` tokens and have `supervised` ones together."""
    tokens = (num_samples * length).astype(np.float64)
    if cost.quadratic_length is not None:
        tokens = tokens * (1 + length / cost.quadratic_length)
    return tokens + cost.anchor_cost * supervised


def documents_cost(num_tokens: Ints, squares: Floats, supervised: Ints, cost: CostModel) -> Floats:
    """Cost of documents end to end, each attending to itself alone; `squares` are sums of squared lengths."""
    attention = 0.0 if cost.quadratic_length is None else squares / cost.quadratic_length
    return num_tokens + attention + cost.anchor_cost * supervised


def sample_costs(samples: SampleLengths, ids: Ints, cost: CostModel) -> Floats:
    """Cost of each of these samples by itself."""
    return padded_cost(1, samples.num_tokens[ids], samples.num_supervised[ids], cost)
