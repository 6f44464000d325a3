"""Dagster's own scheduler over the project's code location, on a clock that a case sets.

Nothing here imitates Dagster: the schedule is evaluated, ticks are kept, runs are queued and taken from the queue by
the functions that the daemon calls, on an instance with the project's settings. Only the clock stands still meanwhile,
and a launched run does nothing until the case says that it has ended.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import yaml
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.scheduler.instigation import InstigatorTick
from dagster._core.test_utils import freeze_time
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceLoadTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._scheduler.scheduler import launch_scheduled_runs

from dflash_pipeline.assets.instance import INSTANCE_CONFIG

ROOT = Path(__file__).parents[2]
LOCATION = "dflash_pipeline.assets.definitions"
logger = logging.getLogger("cases.daemon")


@dataclass(frozen=True, kw_only=True, slots=True)
class _ThisLocation(WorkspaceLoadTarget):
    """What `workspace.yaml` names, loaded into this process."""

    def create_origins(self) -> list[InProcessCodeLocationOrigin]:
        target = LoadableTargetOrigin(module_name=LOCATION)
        return [InProcessCodeLocationOrigin(target, location_name="dflash_pipeline")]


class FrozenDaemon:
    """The schedule, the run queue and their instance. Times must not go back."""

    def __init__(
        self, folder: Path, instance: dg.DagsterInstance, *, cron: str, timezone: str, now: datetime, step: timedelta
    ) -> None:
        self.instance = instance
        self.now = now
        self.step = step
        self._recipe = folder / "recipe.yaml"
        self._data = folder / "conversations.jsonl"
        self.new_data()
        self._timezone = timezone
        self._times: dict[str, Any] = {}
        self._queue = QueuedRunCoordinatorDaemon(interval_seconds=5)
        self.edit(cron)

    def edit(self, cron: str) -> None:
        """Save the recipe with another line, and reload the code location as its button does."""
        examples = ROOT / "examples"
        recipe = {
            "name": "cases",
            "storage": str(self._recipe.parent / "storage"),
            "data": {"sources": [{"path": str(self._data)}]},
            "target": {"path": str(examples / "target")},
            "schedule": {"cron": cron, "timezone": self._timezone},
        }
        self._recipe.write_text(yaml.safe_dump(recipe))
        sys.modules.pop(LOCATION, None)  # In place of a new process.
        with mock.patch.dict(os.environ, {"DFLASH_RECIPE": str(self._recipe)}):
            self._workspace = WorkspaceProcessContext(self.instance, _ThisLocation())

    def new_data(self) -> None:
        """One more conversation: without it a tick finds that all of them are trained already."""
        with self._data.open("a") as file:
            file.write('{"question": "again?", "answer": "again"}\n')

    def switch(self, *, on: bool) -> None:
        """The switch on the schedule's page."""
        schedule = self._schedule()
        with freeze_time(self.now):
            if on:
                self.instance.start_schedule(schedule)
            else:
                self.instance.stop_schedule(schedule.get_remote_origin_id(), schedule.selector_id, schedule)

    def run_until(self, until: datetime) -> None:
        """Iterate as the daemon does, up to and without `until`. Runs end at once, and new data come after each."""
        while self.now < until:
            self.iterate()
            for run in self.unfinished():
                self.end(run)
                self.new_data()
            self.now += self.step

    def iterate(self) -> None:
        """What the daemon does at one moment: evaluate the schedule, then take from the queue what may start."""
        with freeze_time(self.now):
            most = self.instance.scheduler.max_catchup_runs
            list(launch_scheduled_runs(self._workspace, logger, self.now, self._times, max_catchup_runs=most))
            list(self._queue.run_iteration(self._workspace, fixed_iteration_time=self.now.timestamp()))

    def ticks(self) -> list[InstigatorTick]:
        """Every tick so far, oldest first."""
        schedule = self._schedule()
        return self.instance.get_ticks(schedule.get_remote_origin_id(), schedule.selector_id)[::-1]

    def runs_since(self, since: datetime) -> list[datetime]:
        """The moments of the ticks since then that asked for a run, one for each run."""
        ticks = [tick for tick in self.ticks() if tick.timestamp >= since.timestamp()]
        return [datetime.fromtimestamp(tick.timestamp, UTC) for tick in ticks for _ in tick.run_ids]

    def unfinished(self) -> list[dg.DagsterRun]:
        over = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
        return [run for run in self.instance.get_runs(ascending=True) if run.status not in over]

    def end(self, run: dg.DagsterRun) -> None:
        """The run succeeds, and lets go of what it held."""
        success = DagsterEvent(event_type_value=DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name)
        self.instance.report_dagster_event(success, run_id=run.run_id)
        self.instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)

    def _schedule(self) -> Any:
        [location] = self._workspace.create_request_context().code_locations
        [repository] = location.get_repositories().values()
        return repository.get_schedule("nightly_retraining")


@contextmanager
def frozen_daemon(folder: Path, *, cron: str, timezone: str, now: datetime, step: timedelta) -> Iterator[FrozenDaemon]:
    """A daemon on a new instance below `folder`, the schedule switched on at `now`.

    It iterates once a `step`, which must be shorter than the time between two ticks. The daemon does once a minute.
    """
    home = folder / "home"
    home.mkdir()
    launcher = {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"}
    settings = {**yaml.safe_load(INSTANCE_CONFIG.read_text()), "run_launcher": launcher}
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        daemon = FrozenDaemon(folder, instance, cron=cron, timezone=timezone, now=now, step=step)
        daemon.switch(on=True)
        yield daemon
