"""What lies about under a storage folder after crashes, and how it is put right: files, processes, MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dflash_pipeline.stages.doctor_ailment import Ailment, lives_since, mendable, only_told
from dflash_pipeline.stages.doctor_processes import orphaned_processes, wrong_statuses
from dflash_pipeline.stages.doctor_stores import (
    list_faults,
    mlflow_faults,
    mlflow_stores,
    record_faults,
    warehouse_faults,
)
from dflash_pipeline.store.files import INCOMPLETE
from dflash_pipeline.store.layout import Storage

LEAST_FREE = 2**30
"""Below this even a small run may end with a full disk."""


def ailments(storage: Storage) -> Iterator[Ailment]:
    """Everything that can be told without the orchestrator, in the order in which it is to be mended."""
    yield from orphaned_processes(storage)
    stores = mlflow_stores(storage)
    yield from mlflow_faults(stores)
    yield from wrong_statuses(storage, asked={uri for uri, wrong in stores.items() if wrong is None})
    yield from leftovers(storage)
    yield from warehouse_faults(storage)
    yield from record_faults(storage)
    yield from list_faults(storage)
    yield from disk_faults(storage)


def leftovers(storage: Storage) -> Iterator[Ailment]:
    """Temporary files and folders of processes that are gone; what was set aside as damaged is only told."""
    for path in sorted(storage.root.rglob(f".*{INCOMPLETE}")):
        if _is_written(path):
            continue
        yield mendable(
            "unfinished",
            "left behind by a process that was killed while it wrote",
            where=str(path),
            fix="`dflash doctor --repair` removes it; nothing reads it",
            mend=partial(_remove, path),
        )
    for path in sorted(storage.root.rglob("*.damaged-*")):
        yield only_told(
            "set aside",
            "was found damaged and replaced",
            where=str(path),
            fix="look at it if you wish, then delete it",
        )


def disk_faults(storage: Storage) -> Iterator[Ailment]:
    """Less room than the next checkpoint may need."""
    free = shutil.disk_usage(storage.root).free
    largest = max((_size(path) for path in storage.runs.glob("*/checkpoints/step_*")), default=0)
    needed = max(LEAST_FREE, 2 * largest)
    if free < needed:
        yield only_told(
            "low disk",
            f"{free / 2**30:.1f} GiB free; the next checkpoints need {needed / 2**30:.1f} GiB",
            where=str(storage.root),
            fix="delete folders of runs, snapshots and exports that you no longer need (docs/operations.md, Disk)",
        )


def _is_written(path: Path) -> bool:
    """By the process that its name tells. A later one with the same number began after the last change."""
    pid = path.name.removesuffix(INCOMPLETE).rpartition(".")[2]
    try:
        return pid.isdigit() and lives_since(int(pid), path.stat().st_ctime)
    except FileNotFoundError:
        return True  # Finished and renamed at this moment.


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
