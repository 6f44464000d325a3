"""The first check of a run: it is on the page, it blocks, and with a fault nothing is read, planned or trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.plan import epoch_range_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe


def run(folder: Path, *, instance: dg.DagsterInstance, **sections: dict[str, Any]) -> dg.ExecuteInProcessResult:
    recipe = load_recipe(write_recipe(folder / "recipe.yaml", **sections))
    workbench = Workbench(recipe=recipe, storage=Storage(root=folder / "storage"))
    return (
        definitions_for(workbench)
        .resolve_job_def("whole_chain")
        .execute_in_process(instance=instance, tags=epoch_range_tags(2), raise_on_error=False)
    )


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def test_with_faults_nothing_starts_and_all_are_on_the_page(tmp_path, instance):
    result = run(tmp_path, instance=instance, drafter={"mask_token_id": 2, "tap_layer_ids": [0, 3]})
    assert not result.success
    assert [event.step_key for event in result.all_events if event.is_step_start] == ["conversations"]
    [check] = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.blocking) == ("preflight", False, True)
    assert check.severity is dg.AssetCheckSeverity.ERROR
    assert (check.description or "").count("\n") == 1
    listed = [record.data for record in check.metadata["listed"].value.records]
    assert [row["where"] for row in listed] == ["drafter.tap_layer_ids", "drafter.mask_token_id"]
    assert not (tmp_path / "storage" / "warehouse.duckdb").exists()
    [failure] = [event for event in result.all_events if event.is_step_failure]
    error = failure.step_failure_data.error
    told = " ".join(str(part.message) for part in (error, error.cause) if part)
    assert Refused.__name__ in told
    assert all(row["what"] in told for row in listed)


def test_ranks_of_the_launchpad_are_looked_at_before_training(chain, tmp_path, instance):
    copy = chain.copy(tmp_path / "storage")
    workbench = Workbench(recipe=copy.recipe, storage=copy.storage)
    with pytest.raises(dg.DagsterInvalidConfigError, match=r"training\.num_ranks 3 does not divide"):
        definitions_for(workbench).resolve_job_def("whole_chain").execute_in_process(
            instance=instance,
            tags=epoch_range_tags(2),
            run_config={
                "ops": {"trained_drafter": {"config": {"fresh": True}}},
                "resources": {"workbench": {"config": {"num_ranks": 3}}},
            },
            asset_selection=[dg.AssetKey("trained_drafter")],
        )
    assert [run.name for run in copy.storage.runs.iterdir()] == [chain.facts["run"]]
