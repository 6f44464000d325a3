"""What a recipe says of retraining by the clock."""

from __future__ import annotations

from dflash_pipeline.recipe.section import Section


class Schedule(Section):
    """When the retraining job runs, once its schedule is switched on in the Dagster page."""

    cron: str = "0 2 * * *"
    timezone: str = "UTC"
