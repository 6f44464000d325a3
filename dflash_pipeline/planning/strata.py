"""Steps that resemble the corpus, and whose micro-batches cost alike.

Micro-batches are ranked by padded length and cut into as many strata as a step has slots; each step takes one of each
stratum. Inside its stratum a micro-batch is ranked by cost, and those of one rank meet in a step: of all ways to draw
one from each stratum this one makes ranks wait least, because sorted rows keep every maximum as small as it can be.
"""

from __future__ import annotations

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.hashing import counter_hash
from dflash_pipeline.planning.keys import Purpose
from dflash_pipeline.planning.order import shuffled
from dflash_pipeline.planning.packing import Floats, Ints
from dflash_pipeline.planning.radix import Keys, argsort

_TIE_BITS = 10
_COST_BITS = 24


def stratified(padded_length: Ints, costs: Floats, spec: BatchingSpec, epoch: int) -> Ints:
    """An order of micro-batches, step after step; what does not fill a step comes last."""
    slots = spec.slots_per_step
    ties = _ties(padded_length.size, spec, epoch)
    by_length = argsort(
        _joined(padded_length.astype(np.uint64), ties), bits=_bits(int(padded_length.max())) + _TIE_BITS
    )
    num_steps, rest = divmod(by_length.size, slots)
    if not num_steps:
        return by_length
    # Those that fill no step are taken evenly from all lengths.
    left = (np.arange(rest) * 2 + 1) * by_length.size // (2 * rest) if rest else np.empty(0, dtype=np.int64)
    strata = np.delete(by_length, left).reshape(slots, num_steps)
    table = _ranked_by_cost(strata, costs, ties).T
    steps = shuffled(np.arange(num_steps), seed=spec.seed, epoch=epoch, purpose=Purpose.STEPS)
    return np.concatenate((balanced_slots(table[steps], costs, spec, epoch).ravel(), by_length[left]))


def balanced_slots(table: Ints, costs: Floats, spec: BatchingSpec, epoch: int) -> Ints:
    """The same steps, `[num_steps, slots_per_step]`, their slots dealt so that ranks (columns) have sums alike.

    Dearest first, back and forth over the ranks; then turned by a random rank, so that none has the dearest each time.
    """
    num_steps, slots = table.shape
    ranks = slots // spec.micro_batches_per_rank
    dealt = np.take_along_axis(table, np.argsort(-costs[table], axis=1, kind="stable"), axis=1)
    rows = dealt.reshape(num_steps, spec.micro_batches_per_rank, ranks)
    rows[:, 1::2] = rows[:, 1::2, ::-1]
    turns = counter_hash(spec.seed, (epoch << 8) | Purpose.SLOTS, np.arange(num_steps)) % np.uint64(ranks)
    columns = (np.arange(ranks) + turns.astype(np.int64)[:, None]) % ranks
    return np.take_along_axis(rows, columns[:, None, :], axis=2).reshape(num_steps, slots)


def _ranked_by_cost(strata: Ints, costs: Floats, ties: Keys) -> Ints:
    """Each row in order of cost, in one sort: row above cost above tie."""
    slots, num_steps = strata.shape
    flat = strata.ravel()
    scaled = (costs[flat] * ((2**_COST_BITS - 1) / costs.max())).astype(np.uint64)
    rows = np.repeat(np.arange(slots, dtype=np.uint64), num_steps)
    keys = _joined((rows << np.uint64(_COST_BITS)) | scaled, ties[flat])
    order = argsort(keys, bits=_bits(slots - 1) + _COST_BITS + _TIE_BITS)
    return flat[order].reshape(slots, num_steps)


def _ties(count: int, spec: BatchingSpec, epoch: int) -> Keys:
    keys = counter_hash(spec.seed, (epoch << 8) | Purpose.MICRO_BATCHES, np.arange(count))
    ties: Keys = keys >> np.uint64(64 - _TIE_BITS)
    return ties


def _joined(high: Keys, ties: Keys) -> Keys:
    return (high << np.uint64(_TIE_BITS)) | ties


def _bits(most: int) -> int:
    return most.bit_length()
