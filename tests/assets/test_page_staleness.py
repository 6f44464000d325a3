"""What is stale shows stale, with its cause, and nothing else does: by Dagster's own judgement, as its page asks it."""

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.metadata import NOT_FINITE
from dflash_pipeline.assets.plan import UP_TO_PLAN, epoch_range_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.records import load_record
from tests.conftest import write_recipe

PLANNED = ("length_statistics", "bucket_boundaries", "run_plan")


@pytest.fixture
def bench(chain, tmp_path):
    """A storage that a test may spoil, after a whole run."""
    copy = chain.copy(tmp_path / "storage")
    workbench = Workbench(recipe=copy.recipe, storage=copy.storage)
    with dg.DagsterInstance.from_config(str(copy.storage.dagster_home)) as instance:
        yield workbench, instance


def test_after_a_whole_run_everything_is_fresh_and_other_epochs_are_missing_not_failed(bench):
    workbench, instance = bench
    found = statuses(workbench, instance)
    assert found.pop("epoch_manifest 002") is StaleStatus.MISSING
    assert set(found.values()) == {StaleStatus.FRESH}
    assert len(found) == 14


def test_other_tokens_make_what_follows_stale_until_it_is_made_again(bench, tmp_path):
    workbench, instance = bench
    other = Workbench(
        recipe=load_recipe(write_recipe(tmp_path / "other.yaml", data={"max_length": 160})), storage=workbench.storage
    )
    materialise(other, instance, "token_sequences")
    found = statuses(other, instance)
    direct = ("length_statistics", "bucket_boundaries", "batching_forecast", "epoch_manifest 000", "run_plan")
    assert found["conversations"] is found["token_sequences"] is StaleStatus.FRESH
    assert {found[name] for name in direct if name != "bucket_boundaries"} == {StaleStatus.STALE}
    assert found["trained_drafter"] is StaleStatus.STALE
    [cause] = causes(other, instance, "trained_drafter")
    assert (cause.reason, cause.dependency.asset_key.to_user_string()) == (
        "has a new dependency data version",
        "token_sequences",
    )

    materialise(other, instance, *PLANNED, "epoch_manifest")
    found = statuses(other, instance)
    assert {found[name] for name in (*PLANNED, "epoch_manifest 000", "epoch_manifest 001")} == {StaleStatus.FRESH}
    assert found["trained_drafter"] is StaleStatus.STALE

    materialise(workbench, instance, "token_sequences", *PLANNED, "epoch_manifest")
    found = statuses(workbench, instance)
    assert found["trained_drafter"] is StaleStatus.FRESH, "what it was trained on is there again"
    assert set(found.values()) == {StaleStatus.FRESH, StaleStatus.MISSING}
    the_same_key_has_the_same_type(instance)


def test_a_run_that_finds_everything_as_it_was_makes_no_version_anew(bench):
    workbench, instance = bench
    before = versions(instance)
    materialise(workbench, instance, *UP_TO_PLAN)
    assert versions(instance) == before
    assert set(statuses(workbench, instance).values()) == {StaleStatus.FRESH, StaleStatus.MISSING}


def test_an_epoch_that_the_form_asked_for_is_as_fresh_as_those_of_the_recipe(bench, tmp_path):
    """It is logged by the asset itself, beyond the partitions of the run."""
    workbench, instance = bench
    more = Workbench(
        recipe=load_recipe(write_recipe(tmp_path / "more.yaml", batching={"epochs": 3})), storage=workbench.storage
    )
    definitions = definitions_for(more)
    job = definitions.resolve_job_def("whole_chain")
    selection = [dg.AssetKey("epoch_manifest")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dflash_pipeline.assets.plan._whole_plan", lambda context, workbench: {0, 1, 2})
        assert job.execute_in_process(instance=instance, tags=epoch_range_tags(2), asset_selection=selection).success
    assert statuses(more, instance)["epoch_manifest 002"] is StaleStatus.FRESH
    materialise(more, instance, "token_sequences", "bucket_boundaries")
    assert statuses(more, instance)["epoch_manifest 002"] is StaleStatus.FRESH, "its inputs are what they were"
    tags = instance.get_latest_materialization_event(dg.AssetKey("epoch_manifest")).asset_materialization.tags
    logged = record(instance, "002").tags
    assert {key for key in tags if "version" in key or "pointer" in key} <= set(logged)


def test_a_plan_is_not_stale_for_an_epoch_that_was_only_made_again(bench):
    workbench, instance = bench
    definitions = definitions_for(workbench)
    job = definitions.resolve_job_def("whole_chain")
    selection = [dg.AssetKey("epoch_manifest")]
    tags = {"dagster/asset_partition_range_start": "001", "dagster/asset_partition_range_end": "001"}
    assert job.execute_in_process(instance=instance, tags=tags, asset_selection=selection).success
    assert statuses(workbench, instance)["run_plan"] is StaleStatus.FRESH
    assert load_record(workbench.storage.record("tiny", "run_plan"), RunPlan).num_epochs == 2


def materialise(workbench: Workbench, instance: dg.DagsterInstance, *names: str) -> None:
    job = definitions_for(workbench).resolve_job_def("whole_chain")
    tags = epoch_range_tags(workbench.recipe.batching.epochs)
    selection = [dg.AssetKey(name) for name in names]
    assert job.execute_in_process(instance=instance, tags=tags, asset_selection=selection).success


def resolver(workbench: Workbench, instance: dg.DagsterInstance) -> CachingStaleStatusResolver:
    graph = definitions_for(workbench).resolve_asset_graph()
    return CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))


def statuses(workbench: Workbench, instance: dg.DagsterInstance) -> dict[str, StaleStatus]:
    """Of every asset; of `epoch_manifest`, of its first three epochs."""
    asked = resolver(workbench, instance)
    found = {}
    for key in asked.asset_graph.materializable_asset_keys:
        name = key.to_user_string()
        if asked.asset_graph.get(key).is_partitioned:
            found |= {f"{name} {part}": asked.get_status(key, part) for part in ("000", "001", "002")}
        else:
            found[name] = asked.get_status(key)
    return found


def causes(workbench: Workbench, instance: dg.DagsterInstance, name: str):
    return resolver(workbench, instance).get_stale_causes(dg.AssetKey(name))


def record(instance: dg.DagsterInstance, partition: str) -> dg.AssetMaterialization:
    chosen = dg.AssetRecordsFilter(asset_key=dg.AssetKey("epoch_manifest"), asset_partitions=[partition])
    [found] = instance.fetch_materializations(chosen, limit=1).records
    return found.asset_materialization


def versions(instance: dg.DagsterInstance) -> dict[str, str]:
    found = {}
    for key in instance.all_asset_keys():
        tags = instance.get_latest_materialization_event(key).asset_materialization.tags
        assert tags["dagster/data_version_is_user_provided"] == "true", key
        found[key.to_user_string()] = tags["dagster/data_version"]
    return found


def the_same_key_has_the_same_type(instance: dg.DagsterInstance) -> None:
    """Over all materialisations that there are: a plot would break off."""
    types: dict[tuple[str, str], set[type]] = {}
    for key in instance.all_asset_keys():
        for found in instance.fetch_materializations(key, limit=50).records:
            for name, value in found.asset_materialization.metadata.items():
                types.setdefault((key.to_user_string(), name), set()).add(type(value))
    assert len(types) > 80
    assert {place: kinds for place, kinds in types.items() if len(kinds) > 1} == {}
    assert not [place for place in types if place[1] == NOT_FINITE]
