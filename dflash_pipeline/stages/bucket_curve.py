"""What more buckets would gain: padding efficiency against their number."""

from __future__ import annotations

from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.planning.boundaries import MOST_AUTOMATIC, boundaries_by_count, padding_efficiency
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.batching import recipe_cost


def efficiency_by_count(recipe: Recipe, statistics: LengthStatistics, *, chosen: int) -> list[float]:
    """Padding efficiency of the best boundaries for 1, 2, … buckets, to 32 or the chosen number, or as many as differ.

    As the recipe's objective counts it: padded up to the boundaries, or to the expected longest of a micro-batch.
    """
    batching = recipe.batching
    found = boundaries_by_count(
        statistics,
        most=max(MOST_AUTOMATIC, chosen),
        grid=batching.boundary_grid,
        cost=recipe_cost(recipe),
        objective=batching.boundary_objective,
        token_budget=batching.token_budget,
    )
    budget = batching.token_budget if batching.boundary_objective == "batch-max" else None
    return [padding_efficiency(statistics, boundaries, token_budget=budget) for boundaries in found]
