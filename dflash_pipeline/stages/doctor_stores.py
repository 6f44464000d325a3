"""Stores that cannot be read, or that another version has written. They are looked at and left as they are."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_pipeline.contracts.errors import DflashError, Refused
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.stages.doctor_ailment import Ailment, only_told
from dflash_pipeline.stages.doctor_processes import uri_of
from dflash_pipeline.store.database import Database
from dflash_pipeline.store.exclusions import read_exclusions
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import read_all_decisions
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.store_faults import store_fault
from dflash_pipeline.tracking.store_uri import is_server, tracking_uri


def warehouse_faults(storage: Storage) -> Iterator[Ailment]:
    """The warehouse is damaged, of another version, or held by another process."""
    wrong = Database(storage.warehouse, wait_seconds=0).look() if storage.warehouse.exists() else None
    if wrong is not None:
        yield only_told(
            "warehouse",
            wrong,
            where=str(storage.warehouse),
            fix="let the process end, if one holds it; otherwise move the file away: all but the answers of the "
            "target is made anew from the sources",
        )


def record_faults(storage: Storage) -> Iterator[Ailment]:
    """Records of runs that cannot be read, as those of an older version: the next call for the run would stop at it."""
    for path in sorted(storage.runs.glob("*/run.json")):
        try:
            load_record(path, RunRecord)
            uri_of(path.parent, storage)
        except Refused as error:
            yield only_told(
                "unreadable record",
                error.what,
                where=error.where,
                fix=f"if an older version wrote it, rename the folder {path.parent}, and the run is made again; "
                "otherwise put the file back from a copy",
            )


def list_faults(storage: Storage) -> Iterator[Ailment]:
    """What persons and promotions have written down, a line each, and cannot be read: the next run would stop at it."""
    for read, path in ((read_all_decisions, storage.promotions), (read_exclusions, storage.exclusions)):
        try:
            read(path)
        except DflashError as error:
            yield only_told("damaged list", error.what, where=error.where, fix=error.fix)


def mlflow_stores(storage: Storage) -> dict[str, str | None]:
    """What is wrong with each MLflow store that runs of this storage were sent to; None where nothing is."""
    own = tracking_uri(storage.root)
    uris = {own} if (storage.root / "mlflow" / "mlflow.db").exists() else set()
    for path in storage.runs.glob("*/run.json"):
        try:
            uris.add(uri_of(path.parent, storage))
        except Refused:
            continue
    return {uri: store_fault(uri) for uri in sorted(uris)}


def mlflow_faults(stores: dict[str, str | None]) -> Iterator[Ailment]:
    """Of what `mlflow_stores` has found."""
    for uri, wrong in stores.items():
        if wrong is not None:
            yield only_told("MLflow store", wrong, where=uri, fix=_mlflow_fix(uri))


def _mlflow_fix(uri: str) -> str:
    if is_server(uri):
        return "start the server, or see whether its address and password are right; then the same command again"
    return (
        f"copy the file, then `mlflow db upgrade {uri}`; if a newer MLflow has written it, install that; "
        "if it is damaged, move it away and `dflash sync` fills a new one"
    )
