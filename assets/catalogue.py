"""Everything Dagster knows of the pipeline, for one recipe."""

from __future__ import annotations

import dagster as dg

from dflash_pipeline.assets import acceptance, checks, corpus, drafter, export, forecast, plan
from dflash_pipeline.assets.automation import nightly, whole_chain
from dflash_pipeline.assets.resources import RecordStore, Workbench
from dflash_pipeline.assets.terminal_log import terminal_log


def definitions_for(workbench: Workbench) -> dg.Definitions:
    """Assets, checks, job and schedule, working on this recipe and storage."""
    return dg.Definitions(
        assets=dg.load_assets_from_modules([corpus, plan, forecast, drafter, export, acceptance]),
        asset_checks=dg.load_asset_checks_from_modules([checks]),
        jobs=[whole_chain],
        schedules=[nightly(workbench.recipe)],
        resources={"workbench": workbench, "io_manager": RecordStore(workbench)},
        loggers={"console": dg.colored_console_logger, "terminal": terminal_log},
        executor=dg.in_process_executor,
    )
