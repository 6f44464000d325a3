"""What samples and micro-batches cost, by the rule of `CostModel`."""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.manifest import Floats
from dflash_pipeline.planning.packing import Ints


def padded_cost(num_samples: Ints | int, length: Ints, supervised: Ints, cost: CostModel) -> Floats:
    """Cost of `num_samples` samples that each run at `length` tokens and have `supervised` ones together."""
    tokens = (num_samples * length).astype(np.float64)
    if cost.quadratic_length is not None:
        tokens = tokens * (1 + length / cost.quadratic_length)
    return tokens + cost.anchor_cost * supervised
