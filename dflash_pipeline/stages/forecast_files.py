"""`dflash forecast`: all strategies side by side for any lengths, without a recipe or a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel, Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.planning.boundaries import choose_boundaries
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.stages.forecast import forecast_of
from dflash_pipeline.stages.plan_files import read_lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRequest:
    """What `dflash forecast` is asked."""

    strategy: Strategy
    token_budget: int
    slots_per_step: int
    micro_batches_per_rank: int
    num_buckets: int | Literal["auto"]
    grid: int
    quadratic_length: float | None
    seed: int
    tokens_per_second: float | None
    """Useful tokens per second of `sorted` on this machine, from which hours follow."""


def forecast_files(lengths: Path, request: ForecastRequest) -> dict[str, Any]:
    """Facts of every strategy for the lengths in a file."""
    return forecast_facts(read_lengths(lengths), request)


def forecast_facts(samples: SampleLengths, request: ForecastRequest) -> dict[str, Any]:
    statistics = length_statistics(samples)
    cost = CostModel(quadratic_length=request.quadratic_length)
    boundaries = choose_boundaries(
        statistics,
        num_buckets=request.num_buckets,
        grid=request.grid,
        cost=cost,
        objective="boundary",
        token_budget=request.token_budget,
    )
    spec = BatchingSpec(
        strategy=request.strategy,
        token_budget=request.token_budget,
        slots_per_step=request.slots_per_step,
        micro_batches_per_rank=request.micro_batches_per_rank,
        boundaries=boundaries,
        cost=cost,
        seed=request.seed,
    )
    rows = with_hours(
        list(forecast_of(samples, spec, None)),
        tokens=statistics.num_tokens,
        tokens_per_second=request.tokens_per_second,
    )
    return {
        "num_samples": statistics.num_samples,
        "num_tokens": statistics.num_tokens,
        "num_dropped": next(row.num_dropped for row in rows if row.chosen),
        "boundaries": [0, *boundaries],
        "strategies": [asdict(row) for row in rows],
    }


def with_hours(
    rows: Sequence[StrategyForecast], *, tokens: int, tokens_per_second: float | None
) -> list[StrategyForecast]:
    """Hours of an epoch of `tokens` where `sorted` is known to run `tokens_per_second`."""
    if tokens_per_second is None:
        return list(rows)
    return [replace(row, hours=tokens / (tokens_per_second * row.relative_throughput) / 3600) for row in rows]
