"""Passes of the whole chain that begin with the champion: with new rows from its weights, without them not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from mlflow import MlflowClient

from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.assets.whole_run import facts, run_whole_chain
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.evaluation.shares import Candidate
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.acceptance import AcceptanceComparison, _measured, measured, report_prompts
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.promotion import champion_of, promote_by_hand
from dflash_pipeline.stages.run_files import read_run
from dflash_pipeline.stages.run_settings import run_settings
from dflash_pipeline.store.files import file_sha256, folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.event_log import last_attempt_losses
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.warm_start import first_weights_folder
from tests.conftest import Chain

pytestmark = pytest.mark.slow
TRAINED = {"trained_drafter", "exported_drafter", "acceptance_report", "champion"}


@pytest.fixture(scope="module")
def passes(chain: Chain, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The chain's own run is champion; then the recipe with `champion`: the same data, more rows, and those again."""
    copy = chain.copy(tmp_path_factory.mktemp("warm") / "storage")
    first = chain.facts["run"]
    if champion_of(copy.storage, "tiny") is None:
        promote_by_hand("tiny", copy.storage, first, reason="to begin with it")
    found = []
    for rows in (32, 40, 40):
        wanted = ["training.warm_start=champion", f"data.max_rows={rows}", "promotion.floor=1"]
        bench = Workbench(recipe=load_recipe(copy.recipe_file, wanted), storage=copy.storage)
        run = run_whole_chain(bench, fresh=False, plan_only=False)
        found.append(facts(run, plan_only=False) | {"storage": copy.storage.root})
    return found


def test_nothing_new_trains_nothing(chain, passes):
    same, _, again = passes
    assert same["run"] == chain.facts["run"]
    assert same["warm_start"] is None
    assert set(same["reused"]) >= TRAINED
    assert set(again["reused"]) >= TRAINED
    assert again["run"] == passes[1]["run"]


def test_new_rows_begin_with_the_champions_weights(chain, passes):
    _, warm, _ = passes
    storage = Storage(root=warm["storage"])
    assert warm["run"] != chain.facts["run"]
    assert warm["warm_start"] == chain.facts["run"]
    assert "trained_drafter" not in warm["reused"]
    kept = first_weights_folder(storage.runs / warm["run"])
    assert folder_faults(kept) == []
    exported = storage.exports / chain.facts["run"] / "model.safetensors"
    assert file_sha256(kept / "model.safetensors") == file_sha256(exported)
    assert warm["loss"]["first"] < chain.facts["loss"]["first"]
    assert [step for step, _ in last_attempt_losses(storage.runs / warm["run"] / "events.jsonl")] == list(
        range(1, warm["total_steps"] + 1)
    )


def test_the_report_tells_what_training_began_with_and_what_nobody_trained(chain, passes):
    _, warm, _ = passes
    acceptance, storage = warm["acceptance"], Storage(root=warm["storage"])

    def report(one: dict[str, Any]) -> AcceptanceComparison:
        return load_record(storage.run_record(one["dagster_run_id"], "acceptance_report"), AcceptanceComparison)

    ingestion = load_record(storage.run_record(warm["dagster_run_id"], "conversations"), Ingestion)
    champions = measured(chain.recipe, storage, ingestion, storage.exports / chain.facts["run"])
    assert report(warm).begun_with == champions
    assert acceptance["before"] == champions.mean
    untrained = Candidate(config=recipe_drafter(chain.recipe), seed=chain.recipe.drafter.seed)
    prompts = report_prompts(chain.recipe, storage, ingestion)
    assert _measured(chain.recipe, storage, untrained, prompts) == Made(record=report(warm).untrained, reused=True)
    assert report(passes[0]).begun_with is None
    assert passes[0]["acceptance"]["before"] == passes[0]["acceptance"]["untrained"]
    card = (Path(warm["export_dir"]) / "README.md").read_text()
    assert f"those of run {chain.facts['run']}" in card
    assert f"Before training it was {acceptance['before']:.3f}." in card


def test_it_ends_in_a_promotion_or_in_a_reason(passes):
    for one in passes:
        assert one["promotion"]["action"] in ("promoted", "kept")
        assert one["promotion"]["reason"]


def test_its_pages_say_how_it_began(chain, passes):
    _, warm, _ = passes
    storage = Storage(root=warm["storage"])
    begun = f"champion {chain.facts['run']}"
    client = MlflowClient(tracking_uri(storage.root))
    assert client.get_run(warm["mlflow_run_id"]).data.params["warm_start"] == begun
    assert client.get_run(chain.facts["mlflow_run_id"]).data.params["warm_start"] == "scratch"
    with dg.DagsterInstance.from_config(str(storage.dagster_home)) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("trained_drafter"))
        assert event.asset_materialization.metadata["warm_start"].value == begun
        told = [entry.user_message for entry in instance.all_logs(warm["dagster_run_id"])]
    assert f"training: the run begins with the weights of {begun}" in told
    launch = load_record(storage.runs / warm["run"] / "launch.json", LaunchConfig)
    assert (launch.wanted_start, launch.start_text) == ("champion", begun)
    assert run_settings(read_run(storage, warm["run"]))["warm_start"] == begun
