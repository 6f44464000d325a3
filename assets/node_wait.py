"""Waiting for the node before a run begins: while a step waits for its pool, Dagster answers no interrupt."""

from __future__ import annotations

import time
from collections.abc import Callable

import dagster as dg

from dflash_pipeline.assets.instance import OVER
from dflash_pipeline.assets.pools import NODE

LOOK_SECONDS = 1.0


def wait_for_the_node(instance: dg.DagsterInstance, *, tell: Callable[[str], None]) -> None:
    """Return when no run that goes on trains; Ctrl-C and SIGTERM end the waiting. `tell` hears once for which run.

    Another one may still come first: then the step that trains waits in its pool.
    """
    told = ""
    while holder := _holder(instance):
        if holder != told:
            tell(f"run {holder[:8]} trains; this one begins when it has ended (Ctrl-C: not at all)")
            told = holder
        time.sleep(LOOK_SECONDS)


def _holder(instance: dg.DagsterInstance) -> str | None:
    for run_id in sorted(instance.event_log_storage.get_concurrency_info(NODE).active_run_ids):
        run = instance.get_run_by_id(run_id)
        if run is not None and run.status not in OVER:
            return run_id
    return None
