"""The stages up to the sealed plan, called one after another in this process."""

from __future__ import annotations

from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.batching import make_boundaries, make_epochs, make_plan, make_statistics
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.layout import Storage
from tests.faults.chain import RECIPE

WITHOUT_ANSWERS = "responses.enabled=false"
"""The target is the slowest part of planning, and writes nothing that another stage does not write too."""


def planning(storage: Storage) -> None:
    """What `dflash run --plan-only` does with this override, without Dagster."""
    recipe = load_recipe(RECIPE, [WITHOUT_ANSWERS])
    ingestion = make_conversations(recipe, storage).record
    answers = make_responses(recipe, storage, ingestion).record
    snapshot = make_snapshot(recipe, storage, ingestion, answers).record
    boundaries = make_boundaries(recipe, storage, make_statistics(storage, snapshot))
    make_epochs(
        recipe, storage, snapshot, boundaries, range(recipe.batching.epochs), tell=lambda planned, manifest: None
    )
    make_plan(recipe, storage, snapshot, boundaries)
