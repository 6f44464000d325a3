"""What batching is held to on the reference lengths, and whether it keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batching_costs import BoundaryCost, PlanningCost
from batching_worth import Worth


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """One figure and its limit."""

    name: str
    figure: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


def goals(
    worths: Mapping[str, Worth],
    planning: Sequence[PlanningCost],
    boundaries: Sequence[BoundaryCost],
    disk: Mapping[str, Mapping[str, float]],
) -> list[Goal]:
    """`worths` by strategy and micro-batches per rank, as in "window, 2"; `disk` by strategy."""
    return [
        *_of_worth(worths),
        *(
            _most(f"{cost.strategy}, {cost.micro_batches_per_rank}: {what}", figure, limit)
            for cost in planning
            for what, figure, limit in (
                ("one epoch planned / argsort", cost.ratio, 1.0),
                ("peak bytes a sample above the inputs", cost.peak_bytes_a_sample, 24.0),
            )
        ),
        *(
            _most(f"{strategy}: manifest written and read, ms", times["clock"], 100.0)
            for strategy, times in disk.items()
        ),
        *(
            _most(f"{strategy}: six epochs planned and written, s", times["six"], 2.0)
            for strategy, times in disk.items()
        ),
        *(_most(f"boundaries, {cost.objective}, K = {cost.buckets}, ms", cost.ms, 5.0) for cost in boundaries),
        *(
            _least("bucket, K = 6, expected maximum: expected efficiency", cost.expected_efficiency, 0.887)
            for cost in boundaries
            if cost.objective == "batch-max" and cost.buckets == 6
        ),
    ]


def _of_worth(worths: Mapping[str, Worth]) -> Iterator[Goal]:
    for per_rank, overall, w1t in ((1, 0.98, 500.0), (2, 0.99, 140.0)):
        window = worths[f"window, {per_rank}"]
        yield _least(f"window, {per_rank}: padding efficiency", window.padding, 0.998)
        yield _most(f"window, {per_rank}: pair repetition", window.pairs, 0.01)
        yield _least(f"window, {per_rank}: overall efficiency", window.overall, overall)
        yield _most(f"window, {per_rank}: length distance W1t", window.w1t, w1t)
    yield _most("window, 1: length distance W1t, aim", worths["window, 1"].w1t, 400.0)
    for per_rank in (1, 2):
        varlen = worths[f"varlen, {per_rank}"]
        yield _least(f"varlen, {per_rank}: overall efficiency", varlen.overall, 0.993)
        yield _most(f"varlen, {per_rank}: pair repetition", varlen.pairs, 3e-5)
        yield _most(f"varlen, {per_rank}: W1t / that of a random draw", varlen.w1t / varlen.random_w1t, 1.05)
        yield _most(f"varlen, {per_rank}: tokens above the cap", varlen.above_cap, 0)
    yield _least("bucket, K = 6, expected maximum: measured", worths["bucket, expected maximum, 1"].padding, 0.887)


def _least(name: str, figure: Any, limit: float) -> Goal:
    return Goal(name=name, figure=float(figure), limit=limit, at_least=True)


def _most(name: str, figure: Any, limit: float) -> Goal:
    return Goal(name=name, figure=float(figure), limit=limit, at_least=False)
