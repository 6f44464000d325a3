"""`or_`: our own schedule under Dagster's own scheduler, on a frozen clock; and a run that is cancelled.

Daylight saving is asked of Dagster's iteration of the cron line alone: hours of one tick each say what days would.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from dflash_pipeline.assets.automation import whole_chain
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.assets.retraining import nightly
from dflash_pipeline.recipe import Data, Recipe, Schedule, Source, Target
from dflash_pipeline.store.layout import Storage
from tests.cases import cancelling
from tests.cases.daemon import FrozenDaemon, frozen_daemon

BEFORE = timedelta(hours=12)
"""How long the schedule is on before the first event of a case."""
MIDNIGHT = datetime(2026, 11, 2, tzinfo=UTC)


def observe(path: Path) -> dict[str, Any]:
    case = json.loads(path.read_text(encoding="utf-8"))
    if "windows" in case:
        return _windows(case)
    if "launch" in case:
        return cancelling.observe(case)
    with tempfile.TemporaryDirectory() as folder:
        if "history" in case:
            return _edited(case, Path(folder))
        if "paused_from" in case:
            return _paused(case, Path(folder))
        if "run_minutes" in case:
            return _overlapping(case, Path(folder))
    return {"not_observed": f"no known form of a scheduling case: {sorted(case)}"}


def _windows(case: Mapping[str, Any]) -> dict[str, Any]:
    zone = ZoneInfo(case["timezone"])
    lines = {key: value for key, value in case.items() if key not in ("timezone", "windows")}
    facts = []
    for start, end in case["windows"]:
        since, until = (datetime.fromisoformat(moment).replace(tzinfo=zone) for moment in (start, end))
        ticks = {name: ticks_between(cron, case["timezone"], since, until) for name, cron in lines.items()}
        facts.append({"window": [start, end]} | {name: _tick_facts(found, zone) for name, found in ticks.items()})
    return {"windows": facts}


def _edited(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    edits = [event for event in case["history"] if "edit" in event]
    first, last = (_moment(event["at"]) for event in (case["history"][0], edits[-1]))
    zone = ZoneInfo(case["timezone"])
    with frozen_daemon(
        folder, cron=edits[0]["edit"]["from"], timezone=case["timezone"], now=first - BEFORE, step=timedelta(hours=3)
    ) as daemon:
        for event in edits:
            daemon.run_until(_moment(event["at"]))
            daemon.edit(event["edit"]["to"])
        before = daemon.runs_since(first - BEFORE)
        daemon.iterate()
        daemon.run_until(_moment(case["now"]))
        at_once = daemon.runs_since(last)
        daemon.run_until(_moment(case["until"]))
        after = daemon.runs_since(last)
    return {
        "before_the_edit": _tick_facts(before, zone),
        "runs_caused_by_the_edit": len(at_once),
        "after_the_edit": _tick_facts(after, zone),
    }


def _paused(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Paused by the switch on its page; and once more with the daemon itself down instead."""
    return {
        "after_resuming": _after_a_pause(case, folder / "switched", by_switch=True),
        "after_the_daemon_was_down": _after_a_pause(case, folder / "down", by_switch=False),
    }


def _after_a_pause(case: Mapping[str, Any], folder: Path, *, by_switch: bool) -> dict[str, Any]:
    folder.mkdir()
    paused, resumed = _moment(case["paused_from"]), _moment(case["resumed_at"])
    with frozen_daemon(
        folder, cron=case["cron"], timezone=case["timezone"], now=paused - BEFORE, step=timedelta(hours=6)
    ) as daemon:
        daemon.run_until(paused)
        before = daemon.runs_since(paused - BEFORE)
        if by_switch:
            daemon.switch(on=False)
            daemon.run_until(resumed)
            daemon.switch(on=True)
        daemon.now = resumed
        daemon.run_until(_moment(case["until"]))
        all_runs = daemon.runs_since(paused - BEFORE)
    zone = ZoneInfo(case["timezone"])
    in_the_pause = [moment for moment in all_runs if paused <= moment < resumed]
    return {
        "runs_before": len(before),
        "runs_for_ticks_of_the_pause": len(in_the_pause),
        **_tick_facts([moment for moment in all_runs if moment >= resumed], zone),
    }


def _overlapping(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Each run trains as soon as it has the pool's slot, for the minutes of the case; then new data come."""
    length, end = timedelta(minutes=case["run_minutes"]), MIDNIGHT + timedelta(minutes=case["until_minutes"])
    began: dict[str, datetime] = {}
    trainings, most_at_once, most_waiting = [], 0, 0
    with frozen_daemon(
        folder, cron=case["cron"], timezone="UTC", now=MIDNIGHT - timedelta(minutes=5), step=timedelta(minutes=5)
    ) as daemon:
        while daemon.now < end:
            for run in daemon.unfinished():
                if (start := began.get(run.run_id)) and daemon.now - start >= length:
                    daemon.end(run)
                    daemon.new_data()
                    trainings.append([_minute(start), _minute(daemon.now)])
            daemon.iterate()
            unfinished = daemon.unfinished()
            for run in unfinished:
                if run.run_id not in began and _has_the_node(daemon, run):
                    began[run.run_id] = daemon.now
            training = sum(run.run_id in began for run in unfinished)
            most_at_once = max(most_at_once, training)
            most_waiting = max(most_waiting, len(unfinished) - training)
            daemon.now += daemon.step
        ticks = [
            {
                "minute": _minute(datetime.fromtimestamp(tick.timestamp, UTC)),
                "status": tick.status.value,
                "runs": len(tick.run_ids),
                "reason": tick.skip_reason,
            }
            for tick in daemon.ticks()
        ]
    return {
        "ticks": ticks,
        "trainings": trainings,
        "most_trainings_at_once": most_at_once,
        "most_runs_waiting": most_waiting,
    }


def _has_the_node(daemon: FrozenDaemon, run: dg.DagsterRun) -> bool:
    """What the training step of a run that was started asks before it begins."""
    if run.status == dg.DagsterRunStatus.QUEUED:
        return False
    slots = daemon.instance.event_log_storage
    slots.initialize_concurrency_limit_to_default(NODE)
    return slots.claim_concurrency_slot(NODE, run.run_id, "trained_drafter").is_claimed


def _minute(moment: datetime) -> int:
    return round((moment - MIDNIGHT).total_seconds() / 60)


def ticks_between(cron: str, timezone: str, since: datetime, until: datetime) -> list[datetime]:
    """When the recipe's schedule, with this cron line, ticks in [since, until)."""
    recipe = Recipe(
        name="cases",
        data=Data(sources=[Source(path=Path("none.jsonl"))]),
        target=Target(path=Path("none")),
        schedule=Schedule(cron=cron, timezone=timezone),
    )
    schedule = nightly(Workbench(recipe=recipe, storage=Storage(root=Path("none"))), whole_chain(recipe))
    ticks: list[datetime] = []
    for tick in _iterator(schedule, since.timestamp()):
        if tick >= until:
            return ticks
        ticks.append(tick)
    return ticks


def _iterator(schedule: Any, start: float) -> Any:
    from dagster._utils.schedules import schedule_execution_time_iterator

    return schedule_execution_time_iterator(start, schedule.cron_schedule, schedule.execution_timezone)


def _tick_facts(ticks: list[datetime], zone: ZoneInfo) -> dict[str, Any]:
    local = [tick.astimezone(zone) for tick in ticks]
    return {
        "runs": len(ticks),
        "distinct_instants": len({tick.timestamp() for tick in ticks}),
        "local_dates": sorted({moment.date().isoformat() for moment in local}),
        "utc": [tick.astimezone(UTC).isoformat() for tick in ticks],
        "local": [moment.isoformat() for moment in local],
    }


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
