"""What Dagster is told: names, groups, pools, partitions and the schedule."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import instance_for_test

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.plan import EPOCHS
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.recipe import MAX_EPOCHS, load_recipe
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe

ROOT = Path(__file__).parents[2]
GROUPS = {
    "conversations": "data",
    "target_responses": "data",
    "token_sequences": "data",
    "length_statistics": "batching",
    "bucket_boundaries": "batching",
    "epoch_manifest": "batching",
    "run_plan": "batching",
    "batching_forecast": "batching",
    "trained_drafter": "training",
    "exported_drafter": "evaluation",
    "acceptance_report": "evaluation",
    "champion": "evaluation",
    "run_comparison": "evaluation",
}


@pytest.fixture
def definitions(tmp_path) -> dg.Definitions:
    recipe = load_recipe(write_recipe(tmp_path / "r.yaml", batching={"epochs": 5}))
    return definitions_for(Workbench(recipe=recipe, storage=Storage(root=tmp_path / "storage")))


@pytest.fixture
def specs(definitions) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}


def subprocess_environment(tmp_path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "DFLASH_RECIPE")}
    return {**inherited, "DFLASH_STORAGE": str(tmp_path / "storage")}


def test_every_asset_says_what_it_is_and_belongs_to_a_group(specs):
    assert {name: spec.group_name for name, spec in specs.items()} == GROUPS
    for name, spec in specs.items():
        assert len(spec.description or "") > 40, name
        assert spec.kinds, name
        assert spec.owners == [f"team:{spec.group_name}"], name
        assert spec.code_version, name


def test_the_chain_hangs_together(specs):
    def needs(name):
        return {dep.asset_key.to_user_string() for dep in specs[name].deps}

    assert needs("conversations") == set()
    assert needs("run_plan") >= {"epoch_manifest", "token_sequences"}
    assert needs("trained_drafter") == {"run_plan", "token_sequences"}
    assert needs("acceptance_report") == {"conversations", "exported_drafter"}
    assert needs("champion") == {"conversations", "exported_drafter", "acceptance_report"}
    assert needs("run_comparison") == {"trained_drafter", "acceptance_report"}


def test_epochs_are_static_partitions_and_nothing_else_is_partitioned(specs):
    assert EPOCHS.get_partition_keys() == [f"{epoch:03d}" for epoch in range(MAX_EPOCHS)]
    assert [name for name, spec in specs.items() if spec.partitions_def] == ["epoch_manifest"]


def test_checks_before_training_and_of_the_export_block(definitions):
    nodes = definitions.resolve_asset_graph()
    checks = {key.name: nodes.get(key) for key in nodes.asset_check_keys}
    assert {name: node.blocking for name, node in checks.items()} == {
        "preflight": True,
        "few_rows_rejected": True,
        "every_sample_once": True,
        "token_budget_respected": True,
        "totals_agree": True,
        "export_drafts_losslessly": True,
        "export_drafts_as_reported": True,
        "losses_went_down": False,
        "training_estimate_agrees": False,
    }
    assert all(node.description for node in checks.values())


def test_data_are_overdue_only_where_the_recipe_says_how_often_they_come(definitions, tmp_path):
    assert policies(definitions) == {}
    recipe = load_recipe(write_recipe(tmp_path / "s.yaml", schedule={"fresh_days": 10}))
    [(name, policy)] = policies(definitions_for(Workbench(recipe=recipe, storage=Storage(root=tmp_path)))).items()
    assert name == "conversations"
    assert (policy.fail_window.to_timedelta().days, policy.warn_window.to_timedelta().days) == (10, 8)


def policies(definitions: dg.Definitions) -> dict[str, dg.FreshnessPolicy]:
    specs = definitions.resolve_all_asset_specs()
    return {spec.key.to_user_string(): spec.freshness_policy for spec in specs if spec.freshness_policy}


def test_the_schedule_is_off_until_somebody_switches_it_on(definitions):
    schedule = definitions.resolve_schedule_def("nightly_retraining")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 2 * * *", "UTC")
    assert schedule.job_name == "whole_chain"


def test_its_run_request_names_the_recipes_epochs(definitions):
    [request] = tick(definitions)
    assert request.partition_key is None
    assert request.tags["dagster/asset_partition_range_start"] == "000"
    assert request.tags["dagster/asset_partition_range_end"] == "004"


def test_a_run_as_the_schedule_starts_it_makes_exactly_the_recipes_epochs(chain, tmp_path):
    copy = chain.copy(tmp_path / "storage")
    definitions = definitions_for(Workbench(recipe=copy.recipe, storage=copy.storage))
    [request] = tick(definitions)
    with dg.DagsterInstance.ephemeral() as instance:
        result = definitions.resolve_job_def("whole_chain").execute_in_process(
            instance=instance,
            tags=request.tags,
            asset_selection=[dg.AssetKey("epoch_manifest"), dg.AssetKey("run_plan")],
        )
        assert result.success
        assert instance.get_materialized_partitions(dg.AssetKey("epoch_manifest")) == {"000", "001"}


def test_dagster_finds_the_definitions_valid(tmp_path):
    command = [Path(sys.executable).with_name("dagster"), "definitions", "validate"]
    done = subprocess.run(
        [*command, "-m", "dflash_pipeline.assets.definitions"],
        env=subprocess_environment(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Validation successful" in done.stdout + done.stderr


def test_the_code_location_loads_without_torch_or_mlflow(tmp_path):
    look = (
        "import sys, dflash_pipeline.assets.definitions as d; "
        "assert d.defs.resolve_job_def('whole_chain'); "
        "print([m for m in ('torch', 'mlflow', 'transformers', 'duckdb', 'matplotlib') if m in sys.modules])"
    )
    environment = subprocess_environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", look], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def tick(definitions: dg.Definitions) -> list[dg.RunRequest]:
    with instance_for_test() as instance:
        at = datetime(2026, 11, 30, 2, tzinfo=UTC)
        with dg.build_schedule_context(instance=instance, scheduled_execution_time=at) as context:
            data = definitions.resolve_schedule_def("nightly_retraining").evaluate_tick(context)
    return list(data.run_requests)
