"""A run's forensics kept where a person looks: pages in the run's folder, and beside its curves in MLflow."""

from __future__ import annotations

import logging

from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.stages.forensics import look_into
from dflash_pipeline.stages.forensics_pages import event_page, page_name
from dflash_pipeline.stages.run_files import read_run
from dflash_pipeline.store.files import write_atomic
from dflash_pipeline.store.layout import Storage

FOLDER = "forensics"

logger = logging.getLogger(__name__)


def keep_forensics(storage: Storage, run_name: str) -> int:
    """Write a page for each event; how many. It comes after the training, so it never fails for what it lacks."""
    from dflash_pipeline.tracking.forensics_artifact import keep_pages

    try:
        run = read_run(storage, run_name)
        pages = {page_name(found): event_page(run_name, found) for found in look_into(storage, run)}
    except DflashError as error:
        logger.warning("no pages on the loss events of run %s: %s", run_name, error)
        return 0
    for name, page in pages.items():
        write_atomic(run.folder / FOLDER / name, page)
    if pages and run.launch is not None and run.record is not None and run.record.mlflow_run_id:
        keep_pages(run.launch.tracking_uri, run.record.mlflow_run_id, pages)
    return len(pages)
