"""`or_`: our own schedule, asked by Dagster's iteration of its cron line when it would tick.

What only a running daemon shows (pausing, overlap, cancelling, a tick caused by an edit) is told as not observed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from dflash_pipeline.assets.automation import nightly
from dflash_pipeline.recipe import Data, Recipe, Schedule, Source, Target

DAEMON = "it takes a running Dagster daemon, which this runner does not start"


def observe(path: Path) -> dict[str, Any]:
    case = json.loads(path.read_text(encoding="utf-8"))
    if "windows" in case:
        return _windows(case)
    if "history" in case:
        return _edited(case)
    if "paused_from" in case:
        return _paused(case)
    if "run_minutes" in case:
        return {"not_observed": f"overlap of runs: {DAEMON}"}
    if "launch" in case:
        return {"not_observed": f"cancelling a run of many processes: {DAEMON}; tests/launch covers the processes"}
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


def _edited(case: Mapping[str, Any]) -> dict[str, Any]:
    edit = next(event["edit"] for event in case["history"] if "edit" in event)
    since, until = _moment(case["now"]), _moment(case["until"])
    ticks = ticks_between(edit["to"], case["timezone"], since, until)
    return {
        "after_the_edit": _tick_facts(ticks, ZoneInfo(case["timezone"])),
        "not_observed": f"whether the edit itself causes a run: {DAEMON}",
    }


def _paused(case: Mapping[str, Any]) -> dict[str, Any]:
    since, until = _moment(case["resumed_at"]), _moment(case["until"])
    ticks = ticks_between(case["cron"], case["timezone"], since, until)
    return {
        "after_resuming": _tick_facts(ticks, ZoneInfo(case["timezone"])),
        "not_observed": f"whether ticks of the pause are caught up: {DAEMON}",
    }


def ticks_between(cron: str, timezone: str, since: datetime, until: datetime) -> list[datetime]:
    """When the recipe's schedule, with this cron line, ticks in [since, until)."""
    schedule = nightly(
        Recipe(
            name="cases",
            data=Data(sources=[Source(path=Path("none.jsonl"))]),
            target=Target(path=Path("none")),
            schedule=Schedule(cron=cron, timezone=timezone),
        )
    )
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
