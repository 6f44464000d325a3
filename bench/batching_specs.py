"""The rules that batching is measured under: 8 ranks, 32,768 tokens a micro-batch, attention dear from 24,576 on."""

from __future__ import annotations

from reference_lengths import MAX_LENGTH

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel, Padding, Strategy

RANKS = 8
TOKEN_BUDGET = 32_768
COST = CostModel(quadratic_length=24_576.0)
"""Attention as dear as the rest at 24,576 tokens: a dense block of hidden size 4,096."""


def reference_spec(
    strategy: Strategy,
    *,
    micro_batches_per_rank: int = 1,
    boundaries: tuple[int, ...] = (MAX_LENGTH,),
    padding: Padding = "batch-max",
) -> BatchingSpec:
    return BatchingSpec(
        strategy=strategy,
        token_budget=TOKEN_BUDGET,
        slots_per_step=RANKS * micro_batches_per_rank,
        micro_batches_per_rank=micro_batches_per_rank,
        boundaries=boundaries,
        padding=padding,
        cost=COST,
    )
