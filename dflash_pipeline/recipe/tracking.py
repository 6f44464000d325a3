"""What a recipe says of MLflow: where it is, and how long its charts may be."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from dflash_pipeline.recipe.section import Section


class Tracking(Section):
    """Where curves go. No part of a run's identity."""

    uri: str | None = Field(
        None,
        description="A tracking server, without a password; null for MLFLOW_TRACKING_URI, or else the storage's own.",
    )
    points_a_metric: int = Field(
        5000,
        ge=1,
        description="Length of a chart: of a longer run every so many steps are told. steps.parquet has them all.",
    )

    @field_validator("uri")
    @classmethod
    def _plain(cls, uri: str | None) -> str | None:
        if uri is not None and re.search(r"//[^/]*@", uri):
            # Not named in the message: it would be shown.
            raise ValueError(
                "an address with a user or a password in it would be written down in many places; leave them out and "
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            )
        return uri
