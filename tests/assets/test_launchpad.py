"""What is chosen in the form holds for one run, and what cannot be is refused before there is a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.system_config.objects import ResolvedRunConfig
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.launchpad import STARTS, STRATEGIES
from dflash_pipeline.assets.plan import UP_TO_PLAN
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.assets.whole_run import facts, run_whole_chain
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.recipe.choices import CHOICES, chosen, setting, with_choices
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from tests.conftest import Chain, write_recipe


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml", batching={"num_buckets": "auto", "epochs": 2}))
    return Workbench(recipe=recipe, storage=Storage(root=tmp_path / "storage"))


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "recipe.yaml")


@pytest.fixture(scope="module")
def whole_chain(recipe_file: Path) -> dg.JobDefinition:
    storage = Storage(root=recipe_file.parent / "storage")
    workbench = Workbench(recipe=load_recipe(recipe_file), storage=storage)
    return definitions_for(workbench).resolve_job_def("whole_chain")


def form(**chosen: Any) -> dict[str, Any]:
    return {"resources": {"workbench": {"config": chosen}}}


def looked_over(bench: Workbench, config: dict[str, Any]) -> dict[str, Any]:
    """What the location makes of a form when the button is pressed."""
    job = definitions_for(bench).resolve_job_def("whole_chain")
    return dict(ResolvedRunConfig.build(job, config).resources["workbench"].config)


def test_an_empty_form_is_the_recipe(bench):
    assert looked_over(bench, form()) == {name: chosen(bench.recipe, name) for name in CHOICES}
    assert with_choices(bench.recipe, looked_over(bench, form())) == bench.recipe


def test_what_is_chosen_stands_in_the_recipe(bench):
    chosen_ones = form(
        strategy="shuffle", epochs=64, num_buckets=4, learning_rate=1e-4, num_ranks=1, warm_start="champion"
    )
    settings = looked_over(bench, chosen_ones)
    recipe = with_choices(bench.recipe, settings)
    assert (recipe.batching.strategy, recipe.batching.epochs, recipe.batching.num_buckets) == ("shuffle", 64, 4)
    assert (recipe.training.learning_rate, recipe.training.num_ranks) == (1e-4, 1)
    assert recipe.training.warm_start == "champion"
    assert recipe.data == bench.recipe.data


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epochs": 65}, "batching.epochs: input should be less than or equal to 64, not 65"),
        ({"epochs": 0}, "batching.epochs"),
        ({"strategy": "fastest"}, "not in enum type Strategy"),
        ({"token_budget": "many"}, "not valid for expected type"),
        ({"learning_rate": -1.0}, "training.learning_rate: input should be greater than 0"),
        ({"learning_rate": True}, "a number is wanted here, not true"),
        ({"slots_per_step": 10**9}, "batching.slots_per_step: input should be less than or equal to 65536"),
        ({"token_budget": 10**30}, "batching.token_budget: input should be less than or equal to"),
        ({"num_ranks": 3}, "does not divide batching.slots_per_step"),
        ({"num_buckets": 0}, "batching.num_buckets"),
        ({"slots_per_step": 7}, "does not divide batching.slots_per_step 7"),
        ({"max_steps": 0}, "training.max_steps"),
        ({"warm_start": "yesterday"}, "not in enum type WarmStart"),
        ({"seed": 1}, "Received unexpected config entry"),
    ],
)
def test_a_wrong_choice_is_refused_before_there_is_a_run(bench, wrong, sentence):
    with pytest.raises(dg.DagsterInvalidConfigError) as refused:
        looked_over(bench, form(**wrong))
    assert sentence in str(refused.value)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "strategy": st.sampled_from(STRATEGIES),
            "num_buckets": st.none() | st.integers(1, 64),
            "token_budget": st.integers(192, 10_000),
            "slots_per_step": st.sampled_from([2, 4, 8, 16]),
            "epochs": st.integers(1, 64),
            "learning_rate": st.floats(1e-6, 1.0),
            "num_ranks": st.sampled_from([1, 2]),
            "max_steps": st.none() | st.integers(1, 10**9),
            "warm_start": st.sampled_from(STARTS),
        },
    )
)
def test_the_form_and_the_command_line_make_one_recipe(recipe_file, whole_chain, choices):
    """And so one plan and one run, whose names follow from it."""
    assert choices.keys() <= CHOICES.keys()
    said = {name: "auto" if (name, v) == ("num_buckets", None) else json.dumps(v) for name, v in choices.items()}
    line = load_recipe(recipe_file, [f"{'.'.join(CHOICES[name])}={text}" for name, text in said.items()])
    settings = ResolvedRunConfig.build(whole_chain, form(**choices)).resources["workbench"].config
    assert with_choices(load_recipe(recipe_file), settings) == line


def test_every_choice_has_the_recipes_own_sentence(bench):
    assert [name for name in CHOICES if setting(bench.recipe, name).description is None] == []


def test_another_name_is_refused(bench):
    with pytest.raises(Refused, match="'seed' is no choice"):
        with_choices(bench.recipe, {"seed": 1})


def test_a_run_makes_what_was_chosen_as_set_on_the_command_line_does(chain: Chain, tmp_path: Path):
    copy = chain.copy(tmp_path / "storage")
    definitions = definitions_for(Workbench(recipe=copy.recipe, storage=copy.storage))
    job = definitions.resolve_job_def("whole_chain")
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            instance=instance,
            run_config=form(strategy="shuffle", epochs=3),
            # As the page starts it, with the job's own tags: partitions of the recipe's two epochs.
            asset_selection=[dg.AssetKey(name) for name in UP_TO_PLAN],
            tags={"dagster/asset_partition_range_end": "002"},
        )
        assert result.success
        made = instance.get_materialized_partitions(dg.AssetKey("epoch_manifest"))
    plan = load_record(copy.storage.run_record(result.run_id, "run_plan"), RunPlan)
    assert made == {"000", "001", "002"}
    assert (plan.num_epochs, plan.spec.strategy) == (3, "shuffle")
    assert copy.recipe.batching.epochs == 2
    line = load_recipe(copy.recipe_file, ["batching.strategy=shuffle", "batching.epochs=3"])
    by_command = run_whole_chain(Workbench(recipe=line, storage=copy.storage), fresh=False, plan_only=True)
    assert facts(by_command, plan_only=True)["plan"] == plan.fingerprint


def test_the_whole_chain_makes_every_epoch_that_was_chosen_whatever_partitions_it_was_started_with(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Up to the plan, where a stand-in for training ends the run."""
    from dflash_pipeline.stages import training

    class Enough(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise Enough

    monkeypatch.setattr(training, "finished_drafter", stop)
    copy = chain.copy(tmp_path / "storage")
    job = definitions_for(Workbench(recipe=copy.recipe, storage=copy.storage)).resolve_job_def("whole_chain")
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, run_config=form(epochs=4), raise_on_error=False)
        assert not result.success
        assert instance.get_materialized_partitions(dg.AssetKey("epoch_manifest")) == {"000", "001", "002", "003"}
    plan = load_record(copy.storage.run_record(result.run_id, "run_plan"), RunPlan)
    assert plan.num_epochs == 4
