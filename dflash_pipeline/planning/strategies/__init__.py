"""How an epoch's samples become micro-batches. One file a strategy, one interface:

    pack(sample_ids, lengths, spec, epoch) -> Packing

`sample_ids` ascend, `lengths[i]` is that of `sample_ids[i]`, and each fits the token budget. To add a strategy: write
its file, name it in `STRATEGIES` and in `contracts.batching.Strategy`; the property tests take it up by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dflash_pipeline.contracts.batching import BatchingSpec, Strategy
from dflash_pipeline.planning.packing import Ints, Packing
from dflash_pipeline.planning.strategies import bucket, shuffle, sorted_lengths


class Pack(Protocol):
    def __call__(self, sample_ids: Ints, lengths: Ints, spec: BatchingSpec, epoch: int) -> Packing: ...


STRATEGIES: Mapping[Strategy, Pack] = {
    "sorted": sorted_lengths.pack,
    "shuffle": shuffle.pack,
    "bucket": bucket.pack,
}
