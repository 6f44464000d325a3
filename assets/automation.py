"""The job that runs the whole chain, and the schedule that starts it at night."""

import dagster as dg

from dflash_pipeline.assets.plan import EPOCHS, epoch_range_tags
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import Recipe

whole_chain = dg.define_asset_job(
    "whole_chain",
    selection=dg.AssetSelection.all(),
    partitions_def=EPOCHS,
    description="Everything from the source files to the acceptance report. What is unchanged is reused.",
)


def nightly(recipe: Recipe) -> dg.ScheduleDefinition:
    """Start the whole chain at the recipe's time. Off until somebody switches it on."""

    try:
        return _nightly(recipe)
    except dg.DagsterError as error:
        raise Refused(str(error), where="schedule", fix="correct schedule.cron or schedule.timezone") from None


def _nightly(recipe: Recipe) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="nightly_retraining",
        job=whole_chain,
        cron_schedule=recipe.schedule.cron,
        execution_timezone=recipe.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Runs the whole chain; unchanged data, target and settings end in reuse, not in another training.",
    )
    def nightly_retraining() -> dg.RunRequest:
        return dg.RunRequest(tags=epoch_range_tags(recipe.batching.epochs))

    return nightly_retraining
