"""What a killed command may leave behind: Dagster runs that never end, slots that nobody frees, processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import dagster as dg

from dflash_pipeline.assets.instance import open_instance
from dflash_pipeline.store.layout import Storage

UNFINISHED = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING)


def nothing_holds(storage: Path) -> list[str]:
    """A sentence for each Dagster run that still counts as running, and for each pool slot still held."""
    with open_instance(Storage(root=storage)) as instance:
        runs = instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED)))
        held = [f"run {run.run_id} is {run.status.value}" for run in runs]
        for pool in instance.event_log_storage.get_concurrency_keys():
            info = instance.event_log_storage.get_concurrency_info(pool)
            held += [f"pool {pool}: held by run {slot.run_id}" for slot in info.claimed_slots]
            held += [f"pool {pool}: waited for by run {step.run_id}" for step in info.pending_steps]
    return held


def processes_of(storage: Path) -> list[int]:
    """Processes that were started with this storage in their environment, whoever their parent is."""
    mark = f"DFLASH_STORAGE={storage}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # Other people's processes cannot be read, and any may end meanwhile.
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found
