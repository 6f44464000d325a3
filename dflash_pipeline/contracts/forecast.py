"""What an epoch would be by each strategy, before any of it is run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.errors import ContractBroken


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeModel:
    """Seconds of a micro-batch: `seconds_per_cost * cost + seconds_per_micro_batch`; of a step, its slowest rank's."""

    cost: CostModel
    seconds_per_cost: float
    """Of one token's worth of cost."""
    seconds_per_micro_batch: float
    """What a micro-batch takes however little it holds."""
    relative_error: float
    """Median over steps of |predicted - measured| / measured."""
    num_steps: int
    """Measured steps it was fitted to."""

    def __post_init__(self) -> None:
        values = (self.seconds_per_cost, self.seconds_per_micro_batch, self.relative_error)
        if not all(math.isfinite(v) and v >= 0 for v in values) or not any(values[:2]):
            raise ContractBroken(
                f"seconds {self.seconds_per_cost} a cost, {self.seconds_per_micro_batch} a micro-batch",
                where="time model",
                fix="fit it to steps that took time",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyForecast:
    """One epoch of one strategy, planned and measured. Figures as docs/batching.md defines them."""

    name: str
    """The strategy, and `bucket, static` for one shape a bucket."""
    chosen: bool
    """Whether this is what the recipe, or the command line, asks for."""
    num_dropped: int
    """Samples left out: without a token, or longer than the strategy can place within the budget."""
    num_steps: int
    num_micro_batches: int
    num_shapes: int
    """Different (rows, padded length) pairs: what a compiler has to specialise for."""
    padding_efficiency: float
    overall_efficiency: float
    rank_balance: float
    """Mean / largest cost of the ranks of a step, over all steps."""
    length_distance: float
    """Tokens: 1-Wasserstein distance of a step's lengths from the corpus', mean over steps."""
    pair_repetition: float
    """Of the pairs that share a micro-batch, the share that does so again in the next epoch."""
    relative_throughput: float
    """Expected tokens per second / those of `sorted`."""
    hours: float | None
    """Of one epoch; None where no step times say how fast the machine is."""
