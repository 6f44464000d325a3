"""What a recipe says of retraining by the clock, and on new data."""

from __future__ import annotations

from pydantic import Field

from dflash_pipeline.recipe.section import Section


class Schedule(Section):
    """When the whole chain runs by itself, once schedule or sensor is switched on in the Dagster page."""

    cron: str = Field("0 2 * * *", description="When `nightly_retraining` looks: minute, hour, day, month, weekday.")
    timezone: str = Field("UTC", description="In which the cron line is read, such as Europe/Berlin.")
    settle_minutes: float = Field(
        10.0, ge=0, le=10_080, description="New data or a new target are taken once no file has changed for so long."
    )
    retries: int = Field(2, ge=0, le=20, description="How often the sensor starts a failed training again.")
    retry_minutes: float = Field(
        15.0, ge=0, le=10_080, description="Wait before the first of them; doubled for each one after it."
    )
    max_hours: float | None = Field(
        None,
        ge=0.001,
        le=8_760,
        description="A run of the whole chain from the Dagster page, schedule or sensor is stopped after so long, with "
        "a checkpoint, and counts as failed. Empty: two weeks.",
    )
    fresh_days: float | None = Field(
        None,
        ge=0.01,
        le=3_650,
        description="New data are expected so often: the Dagster page shows `conversations` as overdue when no run has "
        "looked at the sources for as long. Empty: never.",
    )
