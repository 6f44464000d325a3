"""What Dagster itself keeps after crashes: runs that nobody works on, and slots that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import dagster as dg
import psutil

from dflash_pipeline.assets.instance import PROCESS_TAG, open_instance, process_lives
from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.findings import Finding
from dflash_pipeline.stages.doctor import Ailment, ailments
from dflash_pipeline.store.layout import Storage

UNDER_WAY = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
OVER = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


def examine(storage: Storage, *, repair: bool) -> list[Finding]:
    """Everything that is found; with `repair`, what can be mended is, in order, and says so."""
    found = []
    # Dagster last: a run is stuck only when its ranks are gone.
    for ailment in ailments(storage):
        found.append(_after(ailment, repair=repair))
    if storage.dagster_home.exists():
        with open_instance(storage) as instance:
            for ailment in (*stuck_runs(instance), *held_slots(instance)):
                found.append(_after(ailment, repair=repair))
    return found


def stuck_runs(instance: dg.DagsterInstance) -> Iterator[Ailment]:
    """Runs that Dagster shows as going on though the process that worked on them is gone."""
    for run in instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY)):
        if _worked_on(instance, run):
            continue
        finding = Finding(
            kind="stuck run",
            what=f"Dagster says {run.status.value}, but the process that worked on it is gone",
            where=f"run {run.run_id}",
            fix="`dflash doctor --repair` marks it failed and frees what it held",
            state="found",
        )
        yield Ailment(finding=finding, mend=partial(_end, instance, run))


def held_slots(instance: dg.DagsterInstance) -> Iterator[Ailment]:
    """Slots of pools that runs hold which are over, or gone altogether."""
    storage = instance.event_log_storage
    for run_id in sorted(storage.get_concurrency_run_ids()):
        run = instance.get_run_by_id(run_id)
        if run is not None and run.status not in OVER:
            continue
        finding = Finding(
            kind="held slot",
            what="a run that is over still holds, or waits for, a slot of a pool",
            where=f"run {run_id}",
            fix="`dflash doctor --repair` frees it",
            state="found",
        )
        yield Ailment(finding=finding, mend=partial(storage.free_concurrency_slots_for_run, run_id))


def _after(ailment: Ailment, *, repair: bool) -> Finding:
    if not repair or ailment.mend is None:
        return ailment.finding
    try:
        ailment.mend()
    except (DflashError, OSError):
        return ailment.finding
    return ailment.finding.repaired()


def _worked_on(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """By the process that `dflash run` noted, or by the one that Dagster's own launcher told of."""
    noted = run.tags.get(PROCESS_TAG)
    if noted is not None:
        return process_lives(noted)
    pids = [
        pid for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT) if (pid := _pid(entry))
    ]
    # A launcher that tells no process, such as one on another machine, is believed.
    return not pids or psutil.pid_exists(pids[0])


def _pid(entry: dg.EventLogEntry) -> int | None:
    event = entry.dagster_event
    data = None if event is None else event.engine_event_data
    value = None if data is None else data.metadata.get("pid")
    text = "" if value is None else str(value.value)
    return int(text) if text.isdigit() else None


def _end(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    instance.report_run_failed(run, "the process that worked on this run was killed")
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
