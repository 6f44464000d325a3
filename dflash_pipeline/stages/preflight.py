"""What can be known to be wrong before the first row is read: a fault found now, not after an hour."""

from __future__ import annotations

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.training import recipe_drafter
from dflash_pipeline.training.distributed import check_device


def check_recipe(recipe: Recipe) -> None:
    """Refuse a target without weights, a drafter that does not fit it, prompts that are not there, a missing device."""
    recipe_drafter(recipe)
    prompts = recipe.evaluation.prompts
    if prompts is not None and not prompts.is_file():
        raise Refused("there is no such file", where=str(prompts), fix="correct evaluation.prompts, or leave it out")
    check_device(recipe.training.device)
    check_strategy(recipe)


def check_strategy(recipe: Recipe) -> None:
    """Refuse to train on documents end to end: attention here keeps rows apart, not documents inside a row."""
    if recipe.batching.strategy == "varlen":
        raise Refused(
            "varlen lays documents end to end in one row, and training does not keep them apart yet",
            where="batching.strategy",
            fix="use window, which pads next to nothing; varlen can be planned with `dflash plan`",
        )
