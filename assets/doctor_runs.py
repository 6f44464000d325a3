"""Runs that Dagster shows as going on though nobody works on them, and the slots of pools that they hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import dagster as dg

from dflash_pipeline.assets.instance import OVER, PROCESS_TAG, UNDER_WAY, process_lives
from dflash_pipeline.stages.doctor_ailment import Ailment, lives_since, mendable, only_told

BEGUN = (dg.DagsterRunStatus.STARTED,)
START_SECONDS = 600.0
"""Longer than a process of a run needs to begin on a busy machine: imports and definitions take it up to a minute."""
LINGER_SECONDS = 90.0
"""Twice `free_slots_after_run_end_seconds`: ranks may live that long, and the daemon looks now and then."""
QUEUE_DAEMON = "QUEUED_RUN_COORDINATOR"
DAEMON_SECONDS = 300.0
"""It notes every 30 s that it lives, later while it starts a run."""


def stuck_runs(instance: dg.DagsterInstance) -> Iterator[Ailment]:
    """Runs whose process is gone, or that have none long after they were to begin."""
    for record in instance.get_run_records(dg.RunsFilter(statuses=UNDER_WAY)):
        run = record.dagster_run
        why = _why_stuck(instance, run, untouched_seconds=time.time() - record.update_timestamp.timestamp())
        if why is None:
            continue
        yield mendable(
            "stuck run",
            f"Dagster says {run.status.value}, but {why}",
            where=f"run {run.run_id}",
            fix="`dflash doctor --repair` marks it failed and frees what it held",
            mend=partial(_end, instance, run),
        )


def queued_runs(instance: dg.DagsterInstance) -> Iterator[Ailment]:
    """Runs that wait for a daemon which is not there. They are in order, and start when it is."""
    heartbeat = instance.get_daemon_heartbeats().get(QUEUE_DAEMON)
    if heartbeat is not None and time.time() - heartbeat.timestamp < DAEMON_SECONDS:
        return
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
        yield only_told(
            "queued run",
            "it waits in the queue, and no daemon has looked there for 5 minutes",
            where=f"run {run.run_id}",
            fix="start the daemon (`dflash ui`, or the unit dflash-daemon), or cancel the run on its page",
        )


def held_slots(instance: dg.DagsterInstance) -> Iterator[Ailment]:
    """Slots of pools that runs hold which are over, or gone altogether."""
    storage = instance.event_log_storage
    for run_id in sorted(storage.get_concurrency_run_ids()):
        record = instance.get_run_record_by_id(run_id)
        if record is not None and not _long_over(record):
            continue
        yield mendable(
            "held slot",
            "a run that is over still holds, or waits for, a slot of a pool",
            where=f"run {run_id}",
            fix="`dflash doctor --repair` frees it",
            mend=partial(storage.free_concurrency_slots_for_run, run_id),
        )


def _long_over(record: dg.RunRecord) -> bool:
    """Over for longer than `dagster.yaml` lets the slots of a run that has ended be: the daemon frees them then."""
    ended = record.end_time
    return record.dagster_run.status in OVER and (ended is None or time.time() - ended > LINGER_SECONDS)


def _why_stuck(instance: dg.DagsterInstance, run: dg.DagsterRun, *, untouched_seconds: float) -> str | None:
    """By the process that `dflash run` noted, or by the one that Dagster's own launcher told of."""
    gone = "the process that worked on it is gone"
    noted = run.tags.get(PROCESS_TAG)
    if noted is not None:
        return None if process_lives(noted) else gone
    told = [
        (pid, entry.timestamp)
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        if (pid := _pid(entry))
    ]
    if told:
        return None if lives_since(*told[0]) else gone
    # One that has begun without telling its process is believed: it may be on another machine.
    if run.status in BEGUN or untouched_seconds < START_SECONDS:
        return None
    return f"no process has begun it within {START_SECONDS / 60:.0f} minutes"


def _pid(entry: dg.EventLogEntry) -> int | None:
    event = entry.dagster_event
    data = None if event is None else event.engine_event_data
    value = None if data is None else data.metadata.get("pid")
    text = "" if value is None else str(value.value)
    return int(text) if text.isdigit() else None


def _end(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    instance.report_run_failed(run, "the process that worked on this run was killed")
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
