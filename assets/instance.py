"""The Dagster instance under the storage folder, and what a killed process left behind in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import psutil

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store.layout import Storage

INSTANCE_CONFIG = Path(__file__).resolve().parent.parent / "dagster.yaml"
PROCESS_TAG = "dflash/process"
"""Which process works on a run in-process: `pid@start`, since a pid alone is given out again."""
UNDER_WAY = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""What a killed process leaves its run as; one that waits in the queue has none yet."""

OVER = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


def prepare_home(storage: Storage) -> Path:
    """DAGSTER_HOME with our instance settings, absolute. Also set in this process' environment."""
    home = storage.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    settings, kept = instance_config(), home / "dagster.yaml"
    # Not written without need: servers may be reading it at this moment, and it may be the very file that is named.
    if not (kept.is_file() and kept.read_bytes() == settings.read_bytes()):
        shutil.copyfile(settings, kept)
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def instance_config() -> Path:
    """The file that `DFLASH_DAGSTER_YAML` names, such as one with PostgreSQL in it; ours without. Refused if absent."""
    given = os.environ.get("DFLASH_DAGSTER_YAML")
    if given and not Path(given).is_file():
        raise Refused(
            "there is no such file", where=f"DFLASH_DAGSTER_YAML: {given}", fix="correct the path or unset it"
        )
    return Path(given) if given else INSTANCE_CONFIG


@contextmanager
def open_instance(storage: Storage) -> Iterator[dg.DagsterInstance]:
    prepare_home(storage)
    with dg.DagsterInstance.get() as instance:
        yield instance


@contextmanager
def instance_as_it_is(storage: Storage) -> Iterator[dg.DagsterInstance]:
    """The same without changing its settings, unless others are asked for: to look at what servers work with."""
    kept = storage.dagster_home / "dagster.yaml"
    if os.environ.get("DFLASH_DAGSTER_YAML") or not kept.is_file():
        with open_instance(storage) as instance:
            yield instance
    else:
        with dg.DagsterInstance.from_config(str(storage.dagster_home)) as instance:
            yield instance


def this_process() -> str:
    return f"{os.getpid()}@{psutil.Process().create_time():.2f}"


def settle_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Mark runs failed whose process was killed, and free what they held. Returns their ids."""
    running = instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY))
    dead = [run for run in running if (tag := run.tags.get(PROCESS_TAG)) and not process_lives(tag)]
    for run in dead:
        instance.report_run_failed(run, "the process that worked on this run was killed")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return [run.run_id for run in dead]


def process_lives(tag: str) -> bool:
    """Whether the process that `this_process` named is still there."""
    pid, _, started = tag.partition("@")
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == started
    except (psutil.NoSuchProcess, ValueError):
        return False
