"""Processes of trainings that go on without the command that started them, and runs that MLflow believes to go on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import psutil

from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.launch.early_side import MODULE as MEASURING_MODULE
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, is_let_go
from dflash_pipeline.launch.torchrun import AGENT_MODULE, RANK_MODULE
from dflash_pipeline.stages.doctor_ailment import Ailment, mendable
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_runs import repair_status, run_status
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.tracker import EndStatus

KILL_AFTER_SECONDS = 30.0
REAP_SECONDS = 10.0
"""For the kernel to end what got SIGKILL; one that waits for a device or a disk may take longer."""
_SENT_BY_RANKS = (RANK_MODULE, AGENT_MODULE)


def orphaned_processes(storage: Storage) -> Iterator[Ailment]:
    """Ranks, their agent and what measures beside them, whose launcher is gone.

    They end by themselves; one that hangs in a driver may not.
    """
    for process in _processes(storage, (*_SENT_BY_RANKS, MEASURING_MODULE)):
        if _launcher_lives(process):
            continue
        yield mendable(
            "orphaned rank",
            "a process of a training goes on although the command that started it has ended",
            where=f"process {process.pid}",
            fix="`dflash doctor --repair` stops it: SIGTERM, and SIGKILL 30 s later",
            mend=partial(_stop, process),
        )


def wrong_statuses(storage: Storage, *, asked: Collection[str]) -> Iterator[Ailment]:
    """Runs that MLflow shows as running though no process works on them; only stores in `asked` are looked at."""
    alive = [word for process in _processes(storage, _SENT_BY_RANKS) for word in _words(process)]
    for path in sorted(storage.runs.glob("*/run.json")):
        try:
            record, uri = load_record(path, RunRecord), uri_of(path.parent, storage)
        except Refused:
            continue  # Told of by itself.
        worked_on = any(word.startswith(f"{path.parent}/") for word in alive)
        if record.mlflow_run_id is None or worked_on or uri not in asked:
            continue
        status = run_status(uri, record.mlflow_run_id)
        if status not in ("RUNNING", "SCHEDULED"):
            continue
        ended: EndStatus = (
            "finished" if record.status == "finished" else "failed" if record.status == "failed" else "killed"
        )
        yield mendable(
            "wrong status",
            f"MLflow says {status} of a run that {'has finished' if ended == 'finished' else 'nobody works on'}",
            where=f"MLflow run {record.mlflow_run_id} of {path.parent.name}",
            fix="`dflash doctor --repair` ends it there",
            mend=partial(_end_run, uri, record.mlflow_run_id, ended),
        )


def uri_of(run_dir: Path, storage: Storage) -> str:
    """The MLflow store that a run was sent to. Refused if its launch.json cannot be read."""
    launch = run_dir / "launch.json"
    return load_record(launch, LaunchConfig).tracking_uri if launch.exists() else tracking_uri(storage.root)


def _processes(storage: Storage, modules: Collection[str]) -> list[psutil.Process]:
    """Those that run one of the modules for a run under this storage folder."""
    found = []
    for process in psutil.process_iter():
        words = _words(process)
        if any(module in words for module in modules) and any(word.startswith(f"{storage.runs}/") for word in words):
            found.append(process)
    return found


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _launcher_lives(process: psutil.Process) -> bool:
    try:
        lifeline = process.environ().get(LIFELINE_VARIABLE)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return True  # It has ended meanwhile, or belongs to somebody else.
    return lifeline is None or not is_let_go(Path(lifeline))


def _stop(process: psutil.Process) -> None:
    try:
        process.terminate()
        process.wait(KILL_AFTER_SECONDS)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        _kill(process)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(REAP_SECONDS)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        raise Failed(
            "the kernel does not end it: it waits for a device or a disk",
            where=f"process {process.pid}",
            fix="look at the system's log; only a reboot may help",
        ) from None


def _end_run(uri: str, run_id: str, status: EndStatus) -> None:
    if not repair_status(uri, run_id, status):
        raise Failed(
            "MLflow did not take it", where=f"MLflow run {run_id}", fix="see that the server answers, then again"
        )
