"""What a run is called on its page, whoever makes the page: the run itself, or `dflash sync` afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_pipeline.training.settings import LaunchConfig

DAGSTER_RUN = "DFLASH_DAGSTER_RUN"
"""In the environment of ranks that a Dagster run started: its id."""


def page_name(config: LaunchConfig) -> str:
    return f"{config.experiment}-{Path(config.run_dir).name}"


def page_tags(config: LaunchConfig) -> dict[str, str]:
    tags = {"dflash.run": config.run, "dflash.run_dir": config.run_dir}
    started_by = os.environ.get(DAGSTER_RUN)
    return tags | {"dflash.dagster_run": started_by} if started_by else tags
