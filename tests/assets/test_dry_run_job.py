"""The job `dry_run`, and wrong choices, as the page's server handles them: through GraphQL, on a real instance."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import instance_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster_graphql.test.utils import execute_dagster_graphql

from dflash_pipeline.assets.automation import TRAINS
from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.dry_run import DRY_RUN
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.dry_run import dry_run
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe

LOCATION = """
from pathlib import Path
from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage
here = Path(__file__).parent
defs = definitions_for(Workbench(recipe=load_recipe(here / "recipe.yaml"), storage=Storage(root=here / "storage")))
"""
LAUNCH = """mutation($wanted: ExecutionParams!) { launchRun(executionParams: $wanted) {
  __typename
  ... on LaunchRunSuccess { run { runId } }
  ... on RunConfigValidationInvalid { errors { message } }
  ... on PythonError { message } } }"""
JOBS = """{ repositoryOrError(repositorySelector: {repositoryLocationName: "here", repositoryName: "__repository__"}) {
  ... on Repository { jobs { name description } } } }"""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What stands behind the page: a code location and an instance."""

    context: WorkspaceRequestContext
    instance: dg.DagsterInstance
    folder: Path

    def press(self, job: str, **choices: Any) -> dict[str, Any]:
        """The answer to the button, with these choices in the form."""
        selector = {"repositoryLocationName": "here", "repositoryName": "__repository__", "pipelineName": job}
        config = {"resources": {"workbench": {"config": choices}}}
        wanted = {"selector": selector, "mode": "default", "runConfigData": config}
        answer = execute_dagster_graphql(self.context, LAUNCH, {"wanted": wanted})
        found: dict[str, Any] = answer.data["launchRun"]
        return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("location")
    write_recipe(folder / "recipe.yaml")
    (folder / "location.py").write_text(LOCATION)
    target = LoadableTargetOrigin(python_file=str(folder / "location.py"), executable_path=sys.executable)
    origin = InProcessCodeLocationOrigin(loadable_target_origin=target, location_name="here")
    with (
        instance_for_test() as instance,
        WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origin)) as process,
    ):
        yield Page(context=process.create_request_context(), instance=instance, folder=folder)


@pytest.mark.parametrize("job", ["whole_chain", DRY_RUN])
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epochs": 65}, "batching.epochs: input should be less than or equal to 64, not 65"),
        ({"learning_rate": -1}, "training.learning_rate: input should be greater than 0, not -1.0"),
        ({"num_buckets": 0}, "input should be greater than or equal to 1, not 0"),
        ({"slots_per_step": 3}, "training.num_ranks 2 does not divide batching.slots_per_step 3"),
        ({"warm_start": "yesterday"}, "not in enum type WarmStart"),
        ({"bogus": 1}, 'Received unexpected config entry "bogus"'),
    ],
)
def test_the_button_refuses_a_wrong_choice_and_there_is_no_run(page, job, wrong, sentence):
    before = page.instance.get_runs_count()
    answer = page.press(job, **wrong)
    told = answer["message"] if answer["__typename"] == "PythonError" else answer["errors"][0]["message"]
    assert sentence in told
    assert page.instance.get_runs_count() == before


def test_both_jobs_say_what_they_do(page):
    jobs = execute_dagster_graphql(page.context, JOBS).data["repositoryOrError"]["jobs"]
    told = {job["name"]: job["description"] for job in jobs}
    assert "trains nothing" in told[DRY_RUN]
    assert "the job dry_run" in told["whole_chain"]


def test_a_dry_run_tells_what_the_command_tells_and_makes_nothing(page):
    """With choices: the figures are those of the recipe with them."""
    recipe, storage = page.folder / "recipe.yaml", page.folder / "storage"
    job = definitions_for(Workbench(recipe=load_recipe(recipe), storage=Storage(root=storage))).resolve_job_def(DRY_RUN)
    result = job.execute_in_process(
        instance=page.instance,
        run_config={"resources": {"workbench": {"config": {"epochs": 3, "num_ranks": 1, "warm_start": "champion"}}}},
    )
    [output] = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    told = {name: value.value for name, value in output.step_output_data.metadata.items()}
    line = load_recipe(recipe, ["batching.epochs=3", "training.num_ranks=1", "training.warm_start=champion"])
    found = dry_run(line, Storage(root=storage), None, known={})
    assert told["steps"] == found["total_steps"] > 0
    assert told["rank_memory_bytes"] == found["memory"]["bytes_per_rank"]
    assert told["storage_bytes"] == found["storage"]["bytes"]
    assert told["ranks"] == 1
    assert told["hours"] == found["hours"]["says"]
    assert "no champion yet" in told["start"]
    assert [row.data["num_steps"] for row in told["epochs"].records] == [e["num_steps"] for e in found["epochs"]]
    assert (told["faults"], told["fault_list"].records) == (0, [])
    assert not storage.exists()
    assert result.get_asset_materialization_events() == []


def test_a_dry_run_shows_what_stands_in_the_way(page, tmp_path):
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml", training={"feature_cache_gib": 1e-6}))
    job = definitions_for(Workbench(recipe=recipe, storage=Storage(root=tmp_path / "s"))).resolve_job_def(DRY_RUN)
    result = job.execute_in_process(instance=page.instance)
    [output] = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    listed = [row.data["where"] for row in output.step_output_data.metadata["fault_list"].value.records]
    assert "training.feature_cache_gib" in listed
    warnings = [e.user_message for e in page.instance.all_logs(result.run_id) if e.level == logging.WARNING]
    assert [text for text in warnings if text.startswith("training.feature_cache_gib: ")]


def test_a_dry_run_waits_for_no_training(page):
    job = page.context.get_code_location("here").get_repository("__repository__").get_full_job(DRY_RUN)
    assert TRAINS.items() & job.tags.items() == set()
    trains = page.context.get_code_location("here").get_repository("__repository__").get_full_job("whole_chain")
    assert TRAINS.items() <= trains.tags.items()
