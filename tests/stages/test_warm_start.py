"""Whose weights a run begins with: fixed when it is first started, and the same call is the same run ever after."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.promotion import Contender, PromotionDecision
from dflash_pipeline.contracts.run import Attempt, RunRecord
from dflash_pipeline.evaluation.export import export_drafter
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.stages.preflight.warm_start import check_champion
from dflash_pipeline.stages.warm_start import (
    champion_to_begin_with,
    check_shape_of_champion,
    choose_start,
    first_weights_of,
    keep_first_weights,
    told_beforehand,
)
from dflash_pipeline.store.files import file_sha256, folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import append_decision
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.training.settings import LaunchConfig, RunLine, WarmStart
from dflash_pipeline.training.warm_start import first_weights_folder
from tests.conftest import write_recipe
from tests.training.toy_run import write_toy

SPEC = BatchingSpec(strategy="shuffle", token_budget=64, slots_per_step=1, micro_batches_per_rank=1, boundaries=(16,))


@dataclass
class Shop:
    """A storage in which runs are started, ended and promoted, without a training."""

    recipe: Recipe
    storage: Storage
    launch: LaunchConfig
    clock: int = 1

    def line(self, plan: str) -> RunLine:
        return replace(self.launch.line, plan=plan)

    def start(self, plan: str, *, fresh: bool = False, ends: bool = True, wanted: str = "champion") -> str:
        """The run that `dflash run` would start or find on this plan, as a name; it ends with an export, or unended."""
        recipe = self.wanting(wanted)
        start = choose_start(recipe, self.storage, self.line(plan), fresh=fresh)
        name = self.line(plan).identity(start)
        run_dir = self.storage.runs / name
        config = replace(self.launch, run=name, run_dir="/moved/away", plan=plan, wanted_start=wanted, warm_start=start)
        save_record(run_dir / "launch.json", config)
        os.utime(run_dir / "launch.json", (self.clock, self.clock))
        self.clock += 1
        if start is not None:
            keep_first_weights(self.storage, start, run_dir)
        self.end(name, "finished" if ends else "running")
        if ends and not (self.storage.exports / name).exists():
            self.export(name)
        return name

    def end(self, name: str, status: str) -> None:
        attempt = Attempt(number=1, num_ranks=1, first_step=0, status=status, last_step=1)
        record = RunRecord(run=name, plan="p", target="toy", total_steps=1, attempts=(attempt,))
        save_record(self.storage.runs / name / "run.json", record)

    def export(self, name: str, **shape: object) -> Path:
        config = replace(self.launch.drafter, **shape)
        self.clock += 1
        state = Drafter.initialised(config, self.clock).state_dict()
        target = Path(self.launch.target_dir)
        export_drafter(config, state, target_dir=target, out=self.storage.exports / name, card=name)
        return self.storage.exports / name

    def promote(self, name: str) -> None:
        contender = Contender(
            run=name,
            export=name,
            weights=file_sha256(self.storage.exports / name / "model.safetensors"),
            target="toy",
            snapshot="s",
            plan="p",
            mlflow_run_id=None,
        )
        decision = PromotionDecision(
            recipe=self.recipe.name,
            action="promoted",
            reason="because",
            contender=contender,
            champion=contender,
            by_hand=True,
            standing=None,
            difference=None,
            basis=str(self.clock),
            unix_seconds=float(self.clock),
        )
        append_decision(self.storage.promotions, decision)

    def wanting(self, start: str) -> Recipe:
        training = self.recipe.training.model_copy(update={"warm_start": start})
        return self.recipe.model_copy(update={"training": training})

    def begun_with(self, name: str) -> str:
        start = load_record(self.storage.runs / name / "launch.json", LaunchConfig).warm_start
        return "scratch" if start is None else start.run


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> LaunchConfig:
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=[8, 8], spec=SPEC, epochs=1)


@pytest.fixture
def shop(tmp_path: Path, launch: LaunchConfig) -> Shop:
    recipe = load_recipe(write_recipe(tmp_path / "tiny.yaml", training={"warm_start": "champion"}))
    return Shop(recipe=recipe, storage=Storage(root=tmp_path / "storage"), launch=launch)


def test_from_scratch_is_the_default_and_asks_nobody(shop):
    first = shop.start("a")
    shop.promote(first)
    cold = shop.start("b", wanted="scratch")
    assert (cold, shop.begun_with(cold)) == (shop.line("b").identity(None), "scratch")


def test_without_a_champion_the_run_is_the_cold_one_and_stays_it_as_champion(shop):
    first = shop.start("a")
    assert first == shop.line("a").identity(None)
    assert shop.start("a") == first, "it is no champion, and there is none"
    shop.promote(first)
    assert shop.start("a") == first, "it is champion itself"
    assert shop.start("a", wanted="scratch") == first


def test_new_data_begin_with_the_champion_and_the_same_call_ends_there(shop):
    first = shop.start("a")
    shop.promote(first)
    second = shop.start("b")
    assert shop.begun_with(second) == first
    assert shop.start("b") == second, "not promoted: its start is champion still"
    shop.promote(second)
    for _ in range(3):
        assert shop.start("b") == second, "promoted: a run of this line is champion"
    third = shop.start("c")
    assert shop.begun_with(third) == second
    assert len({first, second, third}) == 3


def test_an_unfinished_run_keeps_its_start_though_another_is_champion(shop):
    first = shop.start("a")
    shop.promote(first)
    second = shop.start("b", ends=False)
    shop.promote(shop.start("c", wanted="scratch"))
    assert shop.start("b") == second
    assert shop.begun_with(second) == first


def test_an_unfinished_run_from_scratch_stays_it_though_there_is_a_champion_now(shop):
    unfinished = shop.start("a", ends=False)
    shop.promote(shop.start("b", wanted="scratch"))
    assert shop.start("a", ends=False) == unfinished
    assert shop.begun_with(unfinished) == "scratch"


def test_a_run_that_was_to_begin_from_scratch_is_no_unfinished_warm_one(shop):
    cold = shop.start("a", ends=False, wanted="scratch")
    shop.promote(shop.start("b", wanted="scratch"))
    warm = shop.start("a")
    assert warm != cold
    assert shop.begun_with(warm) != "scratch"


def test_another_champion_of_another_line_is_another_start(shop):
    first = shop.start("a")
    shop.promote(first)
    second = shop.start("b")
    other = shop.start("c", wanted="scratch")
    shop.promote(other)
    third = shop.start("b")
    assert third != second
    assert shop.begun_with(third) == other
    assert shop.start("b") == third


def test_fresh_begins_with_the_champion_of_now(shop):
    first = shop.start("a")
    shop.promote(first)
    again = shop.start("a", fresh=True)
    assert shop.begun_with(again) == first
    assert shop.start("a") == again, "its start is champion still"
    shop.promote(again)
    assert shop.start("a") == again


def test_after_a_rollback_the_run_is_found_again(shop):
    first = shop.start("a")
    shop.promote(first)
    second = shop.start("b")
    shop.promote(second)
    shop.promote(first)
    assert shop.start("b") == second


def test_other_settings_are_another_line(shop):
    shop.promote(shop.start("a"))
    line = shop.line("a")
    faster = replace(line, settings=replace(line.settings, learning_rate=1.0))
    assert choose_start(shop.recipe, shop.storage, faster, fresh=False) is not None


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ({"block_size": 8}, "block_size 8, here 4"),
        ({"mask_token_id": 3}, "mask_token_id 3, here 60"),
        ({"tap_layer_ids": (1,)}, r"tap_layer_ids \(1,\), here \(0, 1\)"),
        ({"num_layers": 2, "layer_types": ("full_attention",) * 2}, "num_layers 2, here 1; layer_types"),
        ({"intermediate_size": 32}, "intermediate_size 32, here 24"),
        ({"rope_theta": 5.0}, "rope_theta 5.0, here 10000.0"),
    ],
)
def test_a_champion_of_another_shape_is_refused_and_scratch_is_not_taken_in_silence(shop, shape, sentence):
    shop.export("other", **shape)
    shop.promote("other")
    with pytest.raises(Refused, match=sentence) as refused:
        shop.start("a")
    assert "training.warm_start to scratch" in refused.value.fix
    assert shop.begun_with(shop.start("a", wanted="scratch")) == "scratch"


@pytest.mark.parametrize("how", ["gone", "damaged", "replaced"])
def test_a_champion_whose_weights_cannot_be_had_is_refused_with_the_way_to_them(shop, how, tmp_path):
    first = shop.start("a")
    shop.promote(first)
    folder = shop.storage.exports / first
    if how == "damaged":
        (folder / "model.safetensors").write_bytes(b"half")
    else:
        folder.rename(tmp_path / "away")
    if how == "replaced":
        shop.export(first, rms_norm_eps=1e-6)
    with pytest.raises(Refused, match="cannot be begun with") as refused:
        shop.start("b")
    assert f"dflash export {first}" in refused.value.fix


def test_the_weights_are_kept_with_the_run_and_made_whole_again(shop, tmp_path):
    first = shop.start("a")
    shop.promote(first)
    second = shop.start("b", ends=False)
    folder = first_weights_of(shop.storage, second)
    assert folder == first_weights_folder(shop.storage.runs / second)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "sha256.txt"]
    (folder / "config.json").write_text("{}")
    assert first_weights_of(shop.storage, second) is None
    assert shop.start("b", ends=False) == second
    assert not folder_faults(folder)
    (shop.storage.exports / first).rename(tmp_path / "away")
    assert shop.start("b", ends=False) == second, "they are whole: nobody is asked for them"
    (folder / "config.json").write_text("{}")
    with pytest.raises(Refused, match=f"the weights of {first}, with which this run began, are gone"):
        shop.start("b", ends=False)


def test_a_cold_run_keeps_no_first_weights(shop):
    assert first_weights_of(shop.storage, shop.start("a")) is None
    assert first_weights_of(shop.storage, "nobody") is None


def test_what_is_told_beforehand(shop):
    assert told_beforehand(shop.wanting("scratch"), shop.storage) == "the run begins from scratch"
    assert "there is no champion yet" in told_beforehand(shop.recipe, shop.storage)
    first = shop.start("a", wanted="scratch")
    shop.promote(first)
    assert told_beforehand(shop.recipe, shop.storage) == f"the run begins with the weights of champion {first}"


def test_before_work_starts_the_champion_is_looked_at_where_a_first_run_would_begin_with_it(shop):
    drafter = shop.launch.drafter
    first = shop.start("a", wanted="scratch")
    shop.promote(first)
    assert champion_to_begin_with(shop.wanting("scratch"), shop.storage, drafter) is None
    champion = champion_to_begin_with(shop.recipe, shop.storage, drafter)
    assert champion.run == first
    check_shape_of_champion(shop.storage, champion, drafter)
    shop.start("b", ends=False)
    assert champion_to_begin_with(shop.recipe, shop.storage, drafter) is None, "its start stands already"
    other = replace(drafter, block_size=8)
    with pytest.raises(Refused, match="block_size 4, here 8"):
        check_shape_of_champion(shop.storage, champion_to_begin_with(shop.recipe, shop.storage, other), other)


def test_records_of_other_versions_are_no_runs_of_this_line(shop):
    first = shop.start("a")
    (shop.storage.runs / "odd").mkdir()
    (shop.storage.runs / "odd" / "launch.json").write_text("{}")
    shop.promote(first)
    assert shop.start("a") == first
    start = WarmStart(run=first, export=first, weights="0" * 64)
    with pytest.raises(Refused, match="are gone"):
        keep_first_weights(shop.storage, start, shop.storage.runs / "odd")


def test_the_preflight_lists_a_champion_of_another_shape_beside_other_faults(shop):
    shop.promote(shop.start("a", wanted="scratch"))

    def faults(recipe: Recipe, **shape: object) -> list[str]:
        drafter = replace(shop.launch.drafter, **shape)
        return [f.what for f in check_champion(SimpleNamespace(recipe=recipe, storage=shop.storage, drafter=drafter))]

    assert faults(shop.recipe) == []
    assert faults(shop.wanting("scratch"), block_size=8) == []
    [what] = faults(shop.recipe, block_size=8)
    assert what.endswith("is a drafter of another shape: block_size 4, here 8")
