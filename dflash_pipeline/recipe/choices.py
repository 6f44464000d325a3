"""The few settings that change from run to run, by one name each: for a form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe.text import in_words
from dflash_pipeline.recipe.whole import Recipe

CHOICES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "strategy": ("batching", "strategy"),
        "num_buckets": ("batching", "num_buckets"),
        "token_budget": ("batching", "token_budget"),
        "slots_per_step": ("batching", "slots_per_step"),
        "epochs": ("batching", "epochs"),
        "learning_rate": ("training", "learning_rate"),
        "num_ranks": ("training", "num_ranks"),
        "max_steps": ("training", "max_steps"),
        "warm_start": ("training", "warm_start"),
    }
)
"""Name of a choice: its section and key in a recipe."""


def chosen(recipe: Recipe, name: str) -> Any:
    """What the recipe says of a choice."""
    section, key = CHOICES[name]
    return getattr(getattr(recipe, section), key)


def setting(recipe: Recipe, name: str) -> FieldInfo:
    """The recipe's own declaration of a choice: its type, bounds and sentence."""
    section, key = CHOICES[name]
    declared: FieldInfo = type(getattr(recipe, section)).model_fields[key]
    return declared


def with_choices(recipe: Recipe, choices: Mapping[str, Any]) -> Recipe:
    """The recipe with these choices in place of its own. Refuses, like a recipe's file, with every fault at once."""
    said: dict[str, Any] = recipe.model_dump()
    for name, value in choices.items():
        if name not in CHOICES:
            raise Refused(f"{name!r} is no choice", where="run config", fix=f"use some of {', '.join(CHOICES)}")
        section, key = CHOICES[name]
        said[section][key] = value
    try:
        return Recipe.model_validate(said)
    except ValidationError as error:
        raise Refused(
            "; ".join(in_words(error, Recipe)), where="run config", fix="correct the value, or leave it out"
        ) from None
