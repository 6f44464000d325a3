"""The job that runs the whole chain."""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dflash_pipeline.assets.plan import EPOCHS, WHOLE_CHAIN, epoch_range_tags
from dflash_pipeline.recipe import Recipe

TRAINS = {"dflash/trains": "node"}
"""Tag of every run that trains: `dagster.yaml` lets one of them out of the queue at a time."""


def whole_chain(recipe: Recipe) -> UnresolvedAssetJobDefinition:
    """Everything, for the recipe's epochs: its tags spare whoever starts it from the page the choice of partitions."""
    return dg.define_asset_job(
        WHOLE_CHAIN,
        selection=dg.AssetSelection.all(),
        partitions_def=EPOCHS,
        tags=TRAINS | epoch_range_tags(recipe.batching.epochs),
        description="Everything from the source files to the drafter's acceptance and promotion. What is unchanged is "
        "reused. The form's section resources.workbench changes the recipe for one run; the job dry_run has the same "
        "form, and tells what such a run would take.",
    )
