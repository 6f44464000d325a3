"""What acceptance is worth in time.

A round yields as many tokens as its acceptance length, and costs one pass of the drafter and one of the target over
the block; without a drafter each token costs a pass of the target. With the drafter's pass as `cost_ratio` and the
verifying pass as `verification`, both in passes of the target for one token,

    speed-up = acceptance length / (cost_ratio + verification)

This is theorem 3.8 of Leviathan et al. (arXiv 2211.17192) with the block drafted in one pass instead of one a token. It
takes a verifying pass to cost what a pass for one token does (`verification` 1), as where weights are read from memory
slower than a block is computed: one request or few on a GPU. With many requests at once, and on a CPU, it costs more.
Prompts are left out: they cost the same with and without.
"""

from __future__ import annotations

import math

from dflash_pipeline.contracts.errors import ContractBroken


def expected_speedup(acceptance_length: float, *, cost_ratio: float, verification: float = 1.0) -> float:
    """How many times sooner an answer is there; below 1 where the drafter costs more than it saves."""
    if not (math.isfinite(cost_ratio) and cost_ratio >= 0 and math.isfinite(verification) and verification > 0):
        raise ContractBroken(
            f"cost ratio {cost_ratio}, verification {verification}",
            where="expected speed-up",
            fix="give times in passes of the target for one token: 0 and more, and above 0",
        )
    return acceptance_length / (cost_ratio + verification)
