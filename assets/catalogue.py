"""Everything Dagster knows of the pipeline, for one recipe."""

from __future__ import annotations

import dagster as dg

from dflash_pipeline.assets import (
    acceptance,
    acceptance_checks,
    champion,
    checks,
    comparison,
    corpus,
    drafter,
    export,
    forecast,
    plan,
    training_checks,
)
from dflash_pipeline.assets.automation import whole_chain
from dflash_pipeline.assets.dry_run import dry_run_job
from dflash_pipeline.assets.freshness import with_freshness
from dflash_pipeline.assets.launchpad import workbench_of_the_run
from dflash_pipeline.assets.resources import RecordStore, Workbench
from dflash_pipeline.assets.retraining import nightly, on_new_inputs
from dflash_pipeline.assets.terminal_log import terminal_log


def definitions_for(workbench: Workbench) -> dg.Definitions:
    """Assets, checks, job and schedule, working on this recipe and storage."""
    job = whole_chain(workbench.recipe)
    modules = [corpus, plan, forecast, drafter, export, acceptance, champion, comparison]
    assets = [asset for asset in dg.load_assets_from_modules(modules) if isinstance(asset, dg.AssetsDefinition)]
    return dg.Definitions(
        assets=with_freshness(assets, workbench.recipe),
        asset_checks=dg.load_asset_checks_from_modules([acceptance_checks, checks, training_checks]),
        jobs=[job, dry_run_job],
        schedules=[nightly(workbench, job)],
        sensors=[on_new_inputs(workbench, job)],
        resources={"workbench": workbench_of_the_run(workbench), "io_manager": RecordStore(workbench)},
        loggers={"console": dg.colored_console_logger, "terminal": terminal_log},
        executor=dg.in_process_executor,
    )
