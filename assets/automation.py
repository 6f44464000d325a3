"""The job that runs the whole chain."""

from __future__ import annotations

import math

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import MAX_RETRIES_TAG, MAX_RUNTIME_SECONDS_TAG

from dflash_pipeline.assets.plan import EPOCHS, WHOLE_CHAIN, epoch_range_tags
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.recipe.schedule import Schedule

TRAINS = {"dflash/trains": "node"}
"""Tag of every run that trains: `dagster.yaml` lets one of them out of the queue at a time."""

OUT_OF_REACH = {MAX_RUNTIME_SECONDS_TAG: "0", MAX_RETRIES_TAG: "0"}
"""Tags of a run that no server started: the daemon cannot stop it, only call it failed, nor start it again."""


def whole_chain(recipe: Recipe) -> UnresolvedAssetJobDefinition:
    """Everything, for the recipe's epochs: its tags spare whoever starts it from the page the choice of partitions."""
    return dg.define_asset_job(
        WHOLE_CHAIN,
        selection=dg.AssetSelection.all(),
        partitions_def=EPOCHS,
        tags=TRAINS | epoch_range_tags(recipe.batching.epochs) | limit_tags(recipe.schedule),
        description="Everything from the source files to the drafter's acceptance and promotion. What is unchanged is "
        "reused. The form's section resources.workbench changes the recipe for one run; the job dry_run has the same "
        "form, and tells what such a run would take.",
    )


def limit_tags(schedule: Schedule) -> dict[str, str]:
    """What Dagster's daemon ends a run by. Without a limit of the recipe's own nothing: that of dagster.yaml holds."""
    if schedule.max_hours is None:
        return {}
    # To Dagster a run that was ended so has failed, as one whose process was killed: it would start it again at once.
    return {MAX_RUNTIME_SECONDS_TAG: str(math.ceil(3600 * schedule.max_hours)), MAX_RETRIES_TAG: "0"}
