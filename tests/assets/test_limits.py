"""Limits of time and what follows from them: which runs have one, and that waits are longer than what they wait for."""

from __future__ import annotations

import dagster as dg
import pytest

from dflash_pipeline.assets.automation import TRAINS, limit_tags, whole_chain
from dflash_pipeline.assets.instance import open_instance
from dflash_pipeline.launch.earlier import WAIT_SECONDS
from dflash_pipeline.launch.rank import GRACE_SECONDS
from dflash_pipeline.launch.torchrun import STOP_SECONDS
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.recipe.schedule import Schedule
from dflash_pipeline.store.layout import Storage
from tests.conftest import tiny_recipe


def test_a_recipe_that_sets_a_limit_has_it_in_the_jobs_tags_and_is_not_tried_again():
    recipe = Recipe.model_validate(tiny_recipe(schedule={"max_hours": 12}))
    tags = whole_chain(recipe).tags or {}
    assert tags["dagster/max_runtime"] == "43200"
    assert tags["dagster/max_retries"] == "0"
    assert TRAINS.items() <= tags.items()


def test_without_one_that_of_the_instance_holds():
    tags = whole_chain(Recipe.model_validate(tiny_recipe())).tags or {}
    assert not {"dagster/max_runtime", "dagster/max_retries"} & set(tags)


def test_a_limit_is_whole_seconds_and_never_none_at_all():
    # Dagster takes 0 for no limit.
    assert limit_tags(Schedule(max_hours=0.001))["dagster/max_runtime"] == "4"


@pytest.fixture
def instance(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DAGSTER_HOME", "")  # Set by `open_instance`: undone at the end.
    monkeypatch.delenv("DFLASH_DAGSTER_YAML", raising=False)
    with open_instance(Storage(root=tmp_path / "storage")) as instance:
        yield instance


def test_slots_and_runs_wait_longer_than_ranks_take_to_leave(instance: dg.DagsterInstance):
    longest = max(GRACE_SECONDS, STOP_SECONDS) + 10
    assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"] > longest
    assert instance.run_monitoring_cancel_timeout_seconds > longest
    assert longest < WAIT_SECONDS


def test_only_a_run_whose_process_was_killed_is_tried_again_and_once(instance: dg.DagsterInstance):
    assert instance.run_monitoring_enabled
    assert instance.run_retries_enabled
    assert instance.run_retries_max_retries == 1
    assert not instance.run_retries_retry_on_asset_or_op_failure
