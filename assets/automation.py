"""The job that runs the whole chain."""

import dagster as dg

from dflash_pipeline.assets.plan import EPOCHS

TRAINS = {"dflash/trains": "node"}
"""Tag of every run that trains: `dagster.yaml` lets one of them out of the queue at a time."""

whole_chain = dg.define_asset_job(
    "whole_chain",
    selection=dg.AssetSelection.all(),
    partitions_def=EPOCHS,
    tags=TRAINS,
    description="Everything from the source files to the acceptance report. What is unchanged is reused.",
)
