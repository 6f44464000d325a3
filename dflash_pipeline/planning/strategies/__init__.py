"""How an epoch's samples become micro-batches and steps. One file a strategy, two functions:

    pack(samples, longest, spec, epoch) -> Packing      every sample of 1 to `longest` tokens, once, within the budget
    arrange(batches, spec, epoch) -> order              in which they are served; what fills no step comes last

To add a strategy: write its file, name it in `STRATEGIES` and in `contracts.batching.Strategy`; the property tests take
it up by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dflash_pipeline.contracts.batching import BatchingSpec, Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.batches import Batches
from dflash_pipeline.planning.packing import Ints, Packing
from dflash_pipeline.planning.strategies import bucket, shuffle, sorted_lengths, varlen, window


class Rules(Protocol):
    """A strategy: any module or object with these two functions."""

    def pack(self, samples: SampleLengths, longest: int, spec: BatchingSpec, epoch: int) -> Packing: ...

    def arrange(self, batches: Batches, spec: BatchingSpec, epoch: int) -> Ints: ...


STRATEGIES: Mapping[Strategy, Rules] = {
    "sorted": sorted_lengths,
    "shuffle": shuffle,
    "bucket": bucket,
    "window": window,
    "varlen": varlen,
}
