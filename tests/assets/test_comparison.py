"""`run_comparison`: this run over the champion's or the one before, its verdict, and the samples of its events."""

from __future__ import annotations

import os
from dataclasses import replace

import dagster as dg
import pytest

from dflash_pipeline.assets.comparison import run_comparison
from dflash_pipeline.assets.resources import RecordStore, Workbench
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import save_record
from tests.conftest import write_recipe
from tests.stages.compared_runs import launch_of, write_report, write_run

PICTURES = ("loss", "acceptance", "epochs")


@pytest.fixture
def workbench(tmp_path):
    """Runs a, b and c of the recipe; b is what was just trained, and has a spike."""
    storage = Storage(root=tmp_path / "storage")
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml"))
    launch = replace(launch_of(tmp_path / "toy"), experiment=recipe.name)
    storage.root.mkdir()
    storage.plans.symlink_to(os.path.dirname(launch.plan_dir))  # noqa: PTH120
    for age, name in enumerate("acb"):
        write_run(storage, name, replace(launch, device=f"cpu{name}"))
        os.utime(storage.runs / name / "events.jsonl", (age, age))
        write_report(storage, name, [1, 2, 3])
    trained = TrainedDrafter(
        run="b",
        run_dir=str(storage.runs / "b"),
        plan=launch.plan,
        checkpoint="none",
        total_steps=9,
        steps_done=9,
        num_ranks=2,
        first_loss=3.0,
        last_loss=1.0,
        num_spikes=1,
        useful_tokens_per_second=1.0,
        padded_tokens_per_second=1.0,
        mlflow_run_id=None,
    )
    save_record(storage.record(recipe.name, "trained_drafter"), trained)
    return Workbench(recipe=recipe, storage=storage)


def page(workbench, **config):
    result = dg.materialize(
        [dg.AssetSpec("trained_drafter"), dg.AssetSpec("acceptance_report"), run_comparison],
        selection=[run_comparison],
        resources={"workbench": workbench, "io_manager": RecordStore(workbench)},
        run_config={"ops": {"run_comparison": {"config": config}}},
    )
    [made] = result.asset_materializations_for_node("run_comparison")
    return {name: value.value for name, value in made.metadata.items()}


def test_it_is_drawn_over_the_newest_other_run_of_the_recipe(workbench):
    found = page(workbench)
    assert found["runs"] == "c, b"
    for name in PICTURES:
        assert "](data:image/png;base64," in found[name]
    assert found["differing_settings"] == 2
    assert {record.data["setting"] for record in found["differences"].records} == {"device", "git.revision"}
    assert found["loss_events"] == 1
    assert "spike at step 5" in found["samples_of_loss_events"]
    assert "limits throughput" in found["verdict"]
    assert "+0.000" in found["acceptance_difference"]
    assert "c against b" in (workbench.storage.reports / "comparison-b.html").read_text(encoding="utf-8")


def test_a_person_names_others(workbench):
    assert page(workbench, runs=["a", "b", "c"])["runs"] == "a, b, c"


def test_the_first_run_of_a_recipe_stands_alone(workbench):
    for other in "ac":
        (workbench.storage.runs / other / "launch.json").unlink()
    found = page(workbench)
    assert (found["runs"], found["differing_settings"]) == ("b", 0)
    assert found["acceptance_difference"] == "not measured on the same prompts"
