"""Trainings that nobody starts by hand: by the clock, and on new data or a new target. Never two at once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from zoneinfo import available_timezones

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._utils.schedules import is_valid_cron_schedule, schedule_execution_time_iterator
from dagster._vendored.croniter import CroniterBadDateError

from dflash_pipeline.assets.automation import TRAINS
from dflash_pipeline.assets.inputs_tag import INPUTS_TAG
from dflash_pipeline.assets.plan import WHOLE_CHAIN, epoch_range_tags, takes_in
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.errors import DflashError, Refused
from dflash_pipeline.contracts.retraining import (
    Decision,
    EarlierPass,
    PassState,
    Patience,
    Watched,
    decide,
    decide_soon,
)
from dflash_pipeline.recipe import Schedule

REASON_TAG = "dflash/reason"
LOOKED_BACK = 200
SENSOR_SECONDS = 60

_STATES: Mapping[dg.DagsterRunStatus, PassState] = {
    dg.DagsterRunStatus.SUCCESS: "succeeded",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "canceled",
}


def nightly(workbench: Workbench, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Start the whole chain at the recipe's time. Off until somebody switches it on."""
    check_hours(workbench.recipe.schedule)
    return _nightly(workbench, job)


def check_hours(chosen: Schedule) -> None:
    """Refuse a cron line or a time zone that Dagster does not take, and a line that names no day there is."""
    fix = "correct schedule.cron, such as 0 2 * * *, or schedule.timezone, such as Europe/Berlin"
    if not chosen.timezone or chosen.timezone not in available_timezones():
        raise Refused(f"{chosen.timezone!r} is no time zone", where="schedule.timezone", fix=fix)
    if not is_valid_cron_schedule(chosen.cron):
        raise Refused(f"{chosen.cron!r} is no cron line of five fields", where="schedule.cron", fix=fix)
    try:
        next(schedule_execution_time_iterator(time.time(), chosen.cron, chosen.timezone, ascending=True))
    except CroniterBadDateError:
        raise Refused(f"{chosen.cron!r} names no day that there is", where="schedule.cron", fix=fix) from None


def _nightly(workbench: Workbench, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="nightly_retraining",
        job=job,
        cron_schedule=workbench.recipe.schedule.cron,
        execution_timezone=workbench.recipe.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Runs the whole chain at the recipe's time. Skipped, with the reason, while another training goes "
        "on, and when sources, target and recipe are those of a run that succeeded.",
    )
    def nightly_retraining(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            inputs = _inputs(workbench)
        except DflashError as error:
            return dg.SkipReason(str(error))
        return _answer(workbench, decide(earlier_passes(context.instance), inputs), inputs, run_key=None)

    return nightly_retraining


def on_new_inputs(workbench: Workbench, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Start the whole chain once new data or a new target lie still. Off until somebody switches it on."""
    chosen = workbench.recipe.schedule

    @dg.sensor(
        name="new_data_or_target",
        job=job,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Looks every minute at names, sizes and times of the sources, the target and exclusions.jsonl, and "
        f"at the recipe. What has not changed for {chosen.settle_minutes:g} minutes and is not trained yet is trained; "
        f"a failed run is tried again {chosen.retries} times.",
    )
    def new_data_or_target(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            inputs = _inputs(workbench)
        except DflashError as error:
            return dg.SkipReason(str(error))
        now = time.time()
        watched = _watched(context.cursor, inputs, now)
        context.update_cursor(json.dumps({"digest": watched.digest, "since": watched.since}))
        passes = earlier_passes(context.instance)
        decision = decide_soon(
            passes,
            watched,
            now=now,
            settle_seconds=60 * chosen.settle_minutes,
            patience=Patience(retries=chosen.retries, first_wait_seconds=60 * chosen.retry_minutes),
        )
        # A tick that is evaluated again after a crash of the daemon finds the run that it had asked for.
        attempt = sum(p.inputs == inputs for p in passes)
        return _answer(workbench, decision, inputs, run_key=f"{inputs}-{attempt}")

    return new_data_or_target


def earlier_passes(instance: dg.DagsterInstance) -> list[EarlierPass]:
    """Runs of the whole chain, the newest first, whoever started them; runs of a part of it do not count."""
    records = instance.get_run_records(dg.RunsFilter(job_name=WHOLE_CHAIN), limit=LOOKED_BACK)
    return [
        EarlierPass(
            run_id=record.dagster_run.run_id,
            inputs=record.dagster_run.tags.get(INPUTS_TAG),
            state=_STATES.get(record.dagster_run.status, "unfinished"),
            at=record.end_time or record.create_timestamp.timestamp(),
        )
        for record in records
        if takes_in(record.dagster_run, "conversations", "trained_drafter", "champion")
    ]


def _inputs(workbench: Workbench) -> str:
    from dflash_pipeline.stages.inputs import inputs_digest

    return inputs_digest(workbench.recipe, workbench.storage)


def _watched(cursor: str | None, inputs: str, now: float) -> Watched:
    if cursor is None:
        return Watched(digest=inputs, since=now)
    kept = json.loads(cursor)
    return Watched(digest=kept["digest"], since=kept["since"]).seen_again(inputs, now)


def _answer(
    workbench: Workbench, decision: Decision, inputs: str, *, run_key: str | None
) -> dg.RunRequest | dg.SkipReason:
    if not decision.start:
        return dg.SkipReason(decision.reason)
    tags = {**epoch_range_tags(workbench.recipe.batching.epochs), INPUTS_TAG: inputs, REASON_TAG: decision.reason}
    return dg.RunRequest(run_key=run_key, tags=tags | TRAINS)
