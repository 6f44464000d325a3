"""A recipe is read strictly, and whatever is wrong with it is said at once, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.recipe.text import read_yaml
from tests.conftest import ROOT

GOOD = "name: small\ndata: {sources: [{path: rows.jsonl}]}\ntarget: {path: target}\n"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD)
    return path


def refusal(path: Path, *overrides: str) -> Refused:
    with pytest.raises(Refused) as refused:
        load_recipe(path, overrides)
    return refused.value


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_the_recipes_in_the_repository_are_valid(path):
    recipe = load_recipe(path)
    assert all(source.path.is_absolute() for source in recipe.data.sources)


def test_paths_are_relative_to_the_recipe_not_to_the_working_directory(recipe_file, monkeypatch):
    monkeypatch.chdir("/")
    recipe = load_recipe(recipe_file, ["target.chat_template=../t.jinja", "evaluation.prompts=p.jsonl"])
    folder = recipe_file.parent.resolve()
    assert recipe.data.sources[0].path == folder / "rows.jsonl"
    assert recipe.target.path == folder / "target"
    assert recipe.target.chat_template == folder.parent / "t.jinja"
    assert recipe.evaluation.prompts == folder / "p.jsonl"
    assert recipe.storage == Path("storage")


def test_overrides_go_where_they_say(recipe_file):
    recipe = load_recipe(
        recipe_file, ["batching.seed=7", "training.betas=[0.5, 0.6]", "data.sources.0.map={user: q, assistant: a}"]
    )
    assert (recipe.batching.seed, recipe.training.betas) == (7, (0.5, 0.6))
    assert recipe.data.sources[0].map == {"user": "q", "assistant": "a"}


def test_a_later_override_wins(recipe_file):
    assert load_recipe(recipe_file, ["batching.seed=7", "batching.seed=8"]).batching.seed == 8


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("batching.num_bucket=3", "batching.num_bucket: there is no such setting; num_buckets is meant?"),
        ("zzz=1", "zzz: there is no such setting, only batching, data, drafter, early, evaluation, export, name,"),
        ("data.sources.0.maps={}", "data.sources.0.maps: there is no such setting; map is meant?"),
        ("data.sources.0.weight=0", "data.sources.0.weight: input should be greater than 0, not 0"),
        ("data.sources.0.weight=101", "data.sources.0.weight: input should be less than or equal to 100, not 101"),
        ("data.sources.0.weight=.nan", "data.sources.0.weight: input should be a finite number, not nan"),
        ("batching.epochs=65", "batching.epochs: input should be less than or equal to 64, not 65"),
        ("batching.seed=many", "batching.seed: input should be a valid integer, unable to parse string as an integer"),
        (
            "batching.strategy=none",
            "batching.strategy: input should be 'sorted', 'shuffle', 'bucket', 'window' or 'varlen', not 'none'",
        ),
        ("batching.epochs=true", "batching.epochs: a number is wanted here, not true or false"),
        ("training.betas=[0.5, true]", "training.betas: a number is wanted here, not true or false"),
        ("training.betas=[1, 2]", "training.betas.0: input should be less than 1, not 1; training.betas.1: input"),
        ("training.keep_checkpoints=0", "training: keep_checkpoints must be -1 (all) or at least 1"),
        ("training.num_ranks=3", "recipe: training.num_ranks 3 does not divide batching.slots_per_step 8"),
        ("training.drafter_sharding=none", "training.drafter_sharding: input should be 'ddp' or 'fsdp', not 'none'"),
        ("training.target_sharding=true", "training.target_sharding: input should be 'none' or 'fsdp'"),
        ("target={}", "target.path: is missing"),
        ("target=", "target: input should be a valid dictionary or instance of Target"),
        ("name=../up", "name: string should match pattern"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(recipe_file, override, sentence):
    fault = refusal(recipe_file, override)
    assert fault.what.startswith(sentence)
    assert (fault.where, fault.fix) == (str(recipe_file), "correct the recipe or the --set value")


def test_parts_of_a_target_need_ranks_that_run_it_equally_often(recipe_file):
    fault = refusal(recipe_file, "training.target_sharding=fsdp", "batching.strategy=varlen")
    assert fault.what.startswith(
        "recipe: training.target_sharding fsdp needs a target that all ranks run equally often"
    )
    load_recipe(recipe_file, ["training.target_sharding=fsdp"])
    load_recipe(recipe_file, ["training.drafter_sharding=fsdp", "batching.strategy=varlen"])


def test_every_fault_is_told_at_once(recipe_file):
    fault = refusal(recipe_file, "batching.epochs=0", "training.learning_rate=-1", "bogus=1")
    assert all(name in fault.what for name in ("batching.epochs", "training.learning_rate", "bogus"))


@pytest.mark.parametrize("override", ["batching.seed", "=3", "name.x=1", "data.sources.1.path=x", "name.0=x"])
def test_an_override_that_leads_nowhere_is_refused(recipe_file, override):
    assert refusal(recipe_file, override).where == "--set"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name: a\nname: b\n", "not readable as YAML: 'name' stands twice in line 2"),
        ("a:\n\tb: 1\n", "not readable as YAML: found character '\\t' that cannot start any token in line 2"),
        ("x: !!python/object/apply:os.getcwd []\n", "not readable as YAML: could not determine a constructor"),
        ("[" * 5_000, "not readable as YAML: nested too deeply"),
        ("when: 2026-99-99\n", "not readable as YAML: month must be in 1..12"),
        ("- 1\n", "not a mapping of sections"),
        ("", "not a mapping of sections"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(recipe_file, text, what):
    recipe_file.write_text(text)
    fault = refusal(recipe_file)
    assert fault.what.startswith(what)
    assert "\n" not in fault.what


def test_keys_are_compared_as_yaml_reads_them():
    assert read_yaml("{1: a, '1': b}") == {1: "a", "1": "b"}
    with pytest.raises(ValueError, match="stands twice"):
        read_yaml("{a: {b: 1, b: 2}}")


def test_a_recipe_survives_being_written_and_read(recipe_file):
    recipe = load_recipe(recipe_file)
    recipe_file.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    assert load_recipe(recipe_file) == recipe


def test_every_setting_of_one_section_has_a_bound_or_a_choice():
    unbounded = [
        f"{section}.{name}"
        for section, field in Recipe.model_fields.items()
        if isinstance(kind := field.annotation, type) and hasattr(kind, "model_fields")
        for name, setting in kind.model_fields.items()
        if setting.annotation in (int, float) and not setting.metadata and name != "keep_checkpoints"
    ]
    assert unbounded == []
