"""Where else a run is shown: its page in MLflow, or what opens it."""

from __future__ import annotations

import os

import dagster as dg

from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.tracking.store_uri import is_server, server_uri

MLFLOW_PAGE = "DFLASH_MLFLOW_PAGE"
"""In the environment of what `dflash ui` serves: the address of MLflow's page."""


def mlflow_link(workbench: Workbench, run_id: str | None) -> dg.MetadataValue:
    """Markdown: a link where a page is known, or else the run's id and the command that opens the page."""
    if run_id is None:
        return dg.MetadataValue.md("not tracked yet: `dflash sync` sends what the event log holds")
    uri = server_uri(workbench.recipe.tracking.uri, workbench.storage.root)
    page = uri if is_server(uri) else os.environ.get(MLFLOW_PAGE)
    if page:
        return dg.MetadataValue.md(f"[{run_id}]({page.rstrip('/')}/#/runs/{run_id})")
    return dg.MetadataValue.md(f"run `{run_id}` in {uri}: `dflash ui` with the recipe opens its page")
