"""What a run is called on its page, whoever makes the page: the run itself, or `dflash sync` afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_pipeline.training.settings import LaunchConfig

DAGSTER_RUN = "DFLASH_DAGSTER_RUN"
"""In the environment of ranks that a Dagster run started: its id."""
DAGSTER_PAGE = "DFLASH_DAGSTER_PAGE"
"""In the environment of what `dflash ui` serves: the address of Dagster's page."""


def page_name(config: LaunchConfig) -> str:
    return f"{config.experiment}-{Path(config.run_dir).name}"


def page_tags(config: LaunchConfig) -> dict[str, str]:
    tags = {"dflash.run": config.run, "dflash.run_dir": config.run_dir}
    started_by, page = os.environ.get(DAGSTER_RUN), os.environ.get(DAGSTER_PAGE)
    if started_by:
        tags |= {"dflash.dagster_run": started_by}
        tags |= {"dflash.dagster_page": f"{page.rstrip('/')}/runs/{started_by}"} if page else {}
    return tags
