"""The drafter that a recipe asks for. Apart from training, so that who asks for the shape alone loads no model code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_pipeline.ingest.tokenizer import load_tokenizer
from dflash_pipeline.model.config import DrafterConfig, default_mask_token_id, drafter_config
from dflash_pipeline.model.loading import load_config
from dflash_pipeline.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def recipe_drafter(recipe: Recipe) -> DrafterConfig:
    """The drafter's shape: what the recipe gives, and otherwise what follows from the target."""
    return drafter_of(recipe, load_config(recipe.target.path))


def drafter_of(recipe: Recipe, config: PreTrainedConfig) -> DrafterConfig:
    """The same for a target's config that was read already. The tokenizer is asked where no mask token is set."""
    wanted, path = recipe.drafter, recipe.target.path
    vocabulary = config.get_text_config(decoder=True).vocab_size
    mask = wanted.mask_token_id
    return drafter_config(
        config,
        num_layers=wanted.num_layers,
        block_size=wanted.block_size,
        tap_layer_ids=tuple(wanted.tap_layer_ids) if wanted.tap_layer_ids is not None else None,
        mask_token_id=default_mask_token_id(load_tokenizer(path), vocabulary) if mask is None else mask,
        intermediate_size=wanted.intermediate_size,
        layer_types=tuple(wanted.layer_types) if wanted.layer_types is not None else None,
        sliding_window=wanted.sliding_window,
    )
