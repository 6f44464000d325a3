"""What lies about under a storage folder after crashes, and how it is put right: files, processes, MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from dflash_pipeline.contracts.errors import DflashError, Failed
from dflash_pipeline.contracts.findings import Finding
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, is_let_go
from dflash_pipeline.launch.torchrun import AGENT_MODULE, RANK_MODULE
from dflash_pipeline.store.database import Database
from dflash_pipeline.store.exclusions import read_exclusions
from dflash_pipeline.store.files import INCOMPLETE
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import read_all_decisions
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_runs import repair_status, run_status
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.tracker import EndStatus

LEAST_FREE = 2**30
"""Below this even a small run may end with a full disk."""
KILL_AFTER_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ailment:
    """A finding and what mends it; None where only a person may."""

    finding: Finding
    mend: Callable[[], None] | None = None


def ailments(storage: Storage) -> Iterator[Ailment]:
    """Everything that can be told without the orchestrator, in the order in which it is to be mended."""
    yield from orphaned_ranks(storage)
    yield from wrong_statuses(storage)
    yield from leftovers(storage)
    yield from warehouse_faults(storage)
    yield from damaged_lists(storage)
    yield from disk_faults(storage)


def orphaned_ranks(storage: Storage) -> Iterator[Ailment]:
    """Ranks and their agent whose launcher is gone. They end by themselves; one that hangs in a driver may not."""
    for process in running_ranks(storage):
        if _launcher_lives(process):
            continue
        where = f"process {process.pid}"
        finding = Finding(
            kind="orphaned rank",
            what="a rank goes on although the command that started it has ended",
            where=where,
            fix="`dflash doctor --repair` stops it: SIGTERM, and SIGKILL 30 s later",
            state="found",
        )
        yield Ailment(finding=finding, mend=partial(_stop, process))


def running_ranks(storage: Storage) -> list[psutil.Process]:
    """Processes of trainings under this storage folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        ours = any(module in words for module in (RANK_MODULE, AGENT_MODULE))
        if ours and any(word.startswith(f"{storage.runs}/") for word in words):
            found.append(process)
    return found


def wrong_statuses(storage: Storage) -> Iterator[Ailment]:
    """Runs that MLflow shows as running though no process works on them."""
    alive = running_ranks(storage)
    for path in sorted(storage.runs.glob("*/run.json")):
        record = load_record(path, RunRecord)
        worked_on = any(str(path.parent) + "/" in word for process in alive for word in _words(process))
        if record.mlflow_run_id is None or worked_on:
            continue
        launch = path.with_name("launch.json")
        uri = load_record(launch, LaunchConfig).tracking_uri if launch.exists() else tracking_uri(storage.root)
        status = run_status(uri, record.mlflow_run_id)
        if status not in ("RUNNING", "SCHEDULED"):
            continue
        ended: EndStatus = (
            "finished" if record.status == "finished" else "failed" if record.status == "failed" else "killed"
        )
        finding = Finding(
            kind="wrong status",
            what=f"MLflow says {status} of a run that {'has finished' if ended == 'finished' else 'nobody works on'}",
            where=f"MLflow run {record.mlflow_run_id} of {path.parent.name}",
            fix="`dflash doctor --repair` ends it there",
            state="found",
        )
        yield Ailment(finding=finding, mend=partial(_end_run, uri, record.mlflow_run_id, ended))


def leftovers(storage: Storage) -> Iterator[Ailment]:
    """Temporary files and folders of processes that are gone; what was set aside as damaged is only told."""
    for path in sorted(storage.root.rglob(f".*{INCOMPLETE}")):
        pid = path.name.removesuffix(INCOMPLETE).rpartition(".")[2]
        if pid.isdigit() and psutil.pid_exists(int(pid)):
            continue
        finding = Finding(
            kind="unfinished",
            what="left behind by a process that was killed while it wrote",
            where=str(path),
            fix="`dflash doctor --repair` removes it; nothing reads it",
            state="found",
        )
        yield Ailment(finding=finding, mend=partial(_remove, path))
    for path in sorted(storage.root.rglob("*.damaged-*")):
        yield Ailment(
            finding=Finding(
                kind="set aside",
                what="was found damaged and replaced",
                where=str(path),
                fix="look at it if you wish, then delete it",
                state="for a person",
            )
        )


def warehouse_faults(storage: Storage) -> Iterator[Ailment]:
    """The warehouse is damaged, of another version, or held by another process. It is only looked at."""
    wrong = Database(storage.warehouse, wait_seconds=0).look() if storage.warehouse.exists() else None
    if wrong is not None:
        yield Ailment(
            finding=Finding(
                kind="warehouse",
                what=wrong,
                where=str(storage.warehouse),
                fix="let the process end, if one holds it; otherwise move the file away: all but the answers of the "
                "target is made anew from the sources",
                state="for a person",
            )
        )


def damaged_lists(storage: Storage) -> Iterator[Ailment]:
    """What persons and promotions have written down, a line each, and cannot be read: the next run would stop at it."""
    for read, path in ((read_all_decisions, storage.promotions), (read_exclusions, storage.exclusions)):
        try:
            read(path)
        except DflashError as error:
            finding = Finding(
                kind="damaged list", what=error.what, where=error.where, fix=error.fix, state="for a person"
            )
            yield Ailment(finding=finding)


def disk_faults(storage: Storage) -> Iterator[Ailment]:
    """Less room than the next checkpoint may need."""
    free = shutil.disk_usage(storage.root).free
    largest = max((_size(path) for path in storage.runs.glob("*/checkpoints/step_*")), default=0)
    needed = max(LEAST_FREE, 2 * largest)
    if free < needed:
        yield Ailment(
            finding=Finding(
                kind="low disk",
                what=f"{free / 2**30:.1f} GiB free; the next checkpoints need {needed / 2**30:.1f} GiB",
                where=str(storage.root),
                fix="delete folders of runs, snapshots and exports that you no longer need (docs/operations.md, Disk)",
                state="for a person",
            )
        )


def _launcher_lives(process: psutil.Process) -> bool:
    try:
        lifeline = process.environ().get(LIFELINE_VARIABLE)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return True  # It has ended meanwhile, or belongs to somebody else.
    return lifeline is None or not is_let_go(Path(lifeline))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _stop(process: psutil.Process) -> None:
    try:
        process.terminate()
        process.wait(KILL_AFTER_SECONDS)
    except psutil.TimeoutExpired:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _end_run(uri: str, run_id: str, status: EndStatus) -> None:
    if not repair_status(uri, run_id, status):
        raise Failed(
            "MLflow did not take it", where=f"MLflow run {run_id}", fix="see that the server answers, then again"
        )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
