"""The schedule and the sensor on a real instance: what starts a run of the whole chain, and what is told if nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test, instance_for_test

from dflash_pipeline.assets import retraining
from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.inputs_tag import INPUTS_TAG
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.assets.retraining import check_hours
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import Schedule, load_recipe
from dflash_pipeline.stages.inputs import inputs_digest
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
ROW = '{"question": "1 + 1?", "answer": "2"}\n'


@dataclass
class Bench:
    """A recipe with a source of its own, the definitions of it, an instance, and a clock."""

    workbench: Workbench
    definitions: dg.Definitions
    instance: dg.DagsterInstance
    source: Path
    now: datetime = NOON
    cursor: str | None = None

    def inputs(self) -> str:
        return inputs_digest(self.workbench.recipe, self.workbench.storage)

    def ran(self, status: dg.DagsterRunStatus, *, inputs: str | None = None, job: str = "whole_chain", part=None):
        tags = {} if inputs is None else {INPUTS_TAG: inputs}
        return create_run_for_test(self.instance, job_name=job, status=status, tags=tags, asset_selection=part)

    def clock(self) -> dg.RunRequest | str:
        with dg.build_schedule_context(instance=self.instance, scheduled_execution_time=self.now) as context:
            return self._answer(self.definitions.resolve_schedule_def("nightly_retraining").evaluate_tick(context))

    def sensor(self) -> dg.RunRequest | str:
        with (
            dg.build_sensor_context(instance=self.instance, cursor=self.cursor) as context,
            mock.patch.object(retraining.time, "time", self.now.timestamp),
        ):
            data = self.definitions.resolve_sensor_def("new_data_or_target").evaluate_tick(context)
        self.cursor = data.cursor
        return self._answer(data)

    def _answer(self, data) -> dg.RunRequest | str:
        return data.run_requests[0] if data.run_requests else data.skip_message


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    source = tmp_path / "data" / "rows.jsonl"
    source.parent.mkdir()
    source.write_text(ROW)
    data = {"sources": [{"path": str(source.parent)}]}
    schedule = {"settle_minutes": 10, "retries": 1, "retry_minutes": 30}
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml", data=data, schedule=schedule))
    workbench = Workbench(recipe=recipe, storage=Storage(root=tmp_path / "storage"))
    with instance_for_test() as instance:
        yield Bench(workbench, definitions_for(workbench), instance, source)


def test_a_tick_starts_the_whole_chain_for_what_lies_there(bench):
    request = bench.clock()
    assert request.tags[INPUTS_TAG] == bench.inputs()
    assert request.tags["dflash/trains"] == "node"
    assert "changed" in request.tags["dflash/reason"]
    assert request.run_config == {}, "what the recipe says holds, a warm start too"


def test_a_tick_that_finds_it_trained_skips_and_says_by_which_run(bench):
    run = bench.ran(dg.DagsterRunStatus.SUCCESS, inputs=bench.inputs())
    assert run.run_id[:8] in bench.clock()
    bench.source.write_text(ROW * 2)
    assert isinstance(bench.clock(), dg.RunRequest)


def test_a_failed_run_is_tried_again_by_the_clock(bench):
    bench.ran(dg.DagsterRunStatus.FAILURE, inputs=bench.inputs())
    assert "tried again" in bench.clock().tags["dflash/reason"]


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_nothing_starts_beside_a_run_that_goes_on(bench, status):
    bench.ran(dg.DagsterRunStatus[status])
    assert "still going on" in bench.clock()


def test_a_run_of_some_assets_is_no_training_of_the_whole(bench):
    bench.ran(dg.DagsterRunStatus.SUCCESS, inputs=bench.inputs(), part=frozenset({dg.AssetKey("conversations")}))
    assert isinstance(bench.clock(), dg.RunRequest)


def test_a_run_whose_form_was_opened_names_all_assets_and_counts(bench):
    assets = frozenset(bench.definitions.resolve_asset_graph().get_all_asset_keys())
    bench.ran(dg.DagsterRunStatus.SUCCESS, inputs=bench.inputs(), part=assets)
    assert "has trained on the same" in bench.clock()


def test_a_source_that_is_not_there_is_the_reason(bench):
    bench.source.unlink()
    assert "rows.jsonl" in bench.clock() or "data" in bench.clock()
    assert isinstance(bench.sensor(), str)


def test_the_sensor_takes_what_lies_still_for_as_long_as_the_recipe_says(bench):
    assert "changed 0 s ago" in bench.sensor()
    bench.now += timedelta(minutes=9)
    bench.source.write_text(ROW * 2)
    assert "changed 0 s ago" in bench.sensor(), "half-written: it grew meanwhile"
    bench.now += timedelta(minutes=9)
    assert "changed 540 s ago" in bench.sensor()
    bench.now += timedelta(minutes=1)
    request = bench.sensor()
    assert request.tags[INPUTS_TAG] == bench.inputs()
    assert request.run_key == f"{bench.inputs()}-0"


def test_the_sensor_asks_once_and_after_a_failure_again(bench):
    bench.sensor()
    bench.now += timedelta(minutes=10)
    first = bench.sensor()
    bench.ran(dg.DagsterRunStatus.FAILURE, inputs=bench.inputs())
    bench.now = datetime.now(UTC) + timedelta(minutes=29)
    assert "tried again after 1,800 s" in bench.sensor()
    bench.now += timedelta(minutes=2)
    assert bench.sensor().run_key != first.run_key
    bench.ran(dg.DagsterRunStatus.FAILURE, inputs=bench.inputs())
    bench.now += timedelta(days=1)
    assert "2 runs with these inputs failed" in bench.sensor()


@pytest.mark.parametrize("what", ["target", "exclusions", "added file", "touched"])
def test_what_counts_as_a_change(bench, tmp_path, what):
    before = bench.inputs()
    if what == "target":
        target = tmp_path / "target"
        target.mkdir()
        (target / "config.json").write_text("{}")
        changed = bench.workbench.recipe.model_copy(
            update={"target": bench.workbench.recipe.target.model_copy(update={"path": target})}
        )
        assert inputs_digest(changed, bench.workbench.storage) != before
        first = inputs_digest(changed, bench.workbench.storage)
        (target / "model.safetensors").write_bytes(b"weights")
        assert inputs_digest(changed, bench.workbench.storage) != first
        return
    if what == "exclusions":
        bench.workbench.storage.root.mkdir()
        bench.workbench.storage.exclusions.write_text('{"id": "a"}\n')
    elif what == "added file":
        (bench.source.parent / "more.jsonl").write_text(ROW)
    else:
        os.utime(bench.source, (1, 1))
    assert bench.inputs() != before


def test_a_promotion_is_no_change(bench):
    """Otherwise a run that begins with the champion would be its own cause once it is promoted."""
    training = bench.workbench.recipe.training.model_copy(update={"warm_start": "champion"})
    recipe = bench.workbench.recipe.model_copy(update={"training": training})
    before = inputs_digest(recipe, bench.workbench.storage)
    assert before != bench.inputs(), "how a run is to begin is a setting like others"
    bench.workbench.storage.root.mkdir()
    bench.workbench.storage.promotions.write_text("a decision\n")
    assert inputs_digest(recipe, bench.workbench.storage) == before


def test_the_hour_of_the_schedule_is_no_change(bench):
    later = bench.workbench.recipe.model_copy(
        update={"schedule": bench.workbench.recipe.schedule.model_copy(update={"cron": "0 5 * * *"})}
    )
    assert inputs_digest(later, bench.workbench.storage) == bench.inputs()


@pytest.mark.parametrize(
    ("hours", "where"),
    [
        ({"cron": "x"}, "schedule.cron"),
        ({"cron": "* * * * * *"}, "schedule.cron"),
        ({"cron": "61 * * * *"}, "schedule.cron"),
        ({"cron": "0 2 31 4 *"}, "schedule.cron"),
        ({"cron": "0 2 30 2 *"}, "schedule.cron"),
        ({"timezone": "Mars"}, "schedule.timezone"),
        ({"timezone": ""}, "schedule.timezone"),
    ],
)
def test_hours_that_never_come_are_refused(hours, where):
    with pytest.raises(Refused) as refused:
        check_hours(Schedule(**hours))
    assert refused.value.where == where


@pytest.mark.parametrize("cron", ["0 2 * * *", "*/15 * * * 1-5", "0 0 29 2 *", "@daily"])
def test_hours_that_come_are_taken(cron):
    check_hours(Schedule(cron=cron, timezone="Europe/Berlin"))
