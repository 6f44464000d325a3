"""`dflash init` and `dflash explain`: a recipe that loads as written, and a sentence for every setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.recipe.beginning import first_recipe
from dflash_pipeline.recipe.choices import CHOICES
from dflash_pipeline.recipe.explained import explained
from tests.conftest import ROOT

DEMO = ROOT / "recipes" / "demo.yaml"
TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20)


def settings(dflash, *arguments):
    ran = dflash("explain", DEMO, *arguments, "--json")
    assert ran.code == 0
    return {one["name"]: one for one in ran.document["settings"]}


def test_every_setting_has_a_sentence():
    assert [one.name for one in explained(load_recipe(DEMO)) if not one.sentence] == []


def test_every_setting_is_told_with_what_holds(dflash):
    told = settings(dflash)
    assert {name.partition(".")[0] for name in told} == set(Recipe.model_fields)
    assert told["batching.strategy"] == {
        "name": "batching.strategy",
        "value": "bucket",
        "default": "window",
        "required": False,
        "allowed": "one of sorted, shuffle, bucket, window, varlen",
        "sentence": "How samples share micro-batches and steps; `dflash forecast` compares them.",
        "changed": True,
    }
    assert told["batching.epochs"]["allowed"] == "at least 1, at most 64"
    assert told["batching.num_buckets"]["allowed"] == "at least 1, at most 512, or auto"
    assert (told["target.path"]["required"], told["target.path"]["changed"]) == (True, True)
    assert told["training.betas"] | {"sentence": ""} == {
        **{"name": "training.betas", "value": [0.9, 0.95], "default": [0.9, 0.95], "required": False},
        **{"allowed": "", "sentence": "", "changed": False},
    }


def test_some_of_them(dflash):
    assert settings(dflash, "--section", "data.max_length").keys() == {"data.max_length"}
    changed = settings(dflash, "--changed", "--section", "batching", "--set", "batching.strategy=window")
    assert changed.keys() == {f"batching.{key}" for key in ("token_budget", "slots_per_step", "epochs", "seed")}
    spoken = dflash("explain", DEMO, "--section", "data.max_length").out
    assert spoken == "data.max_length: 384    (default 8192)\n    Longest sample in tokens. [at least 2]\n"
    ran = dflash("explain", DEMO, "--section", "batch", "--json")
    assert (ran.code, ran.document["error"]["where"]) == (2, "--section")


def test_a_first_recipe_says_what_it_was_given_and_nothing_else(dflash, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("deep").mkdir()
    ran = dflash(
        "init", "deep/Mine.yaml", "--source", "chats.jsonl", "--source", "/data/*.gz", "--target", "models/big"
    )
    assert (ran.code, ran.out) == (0, "deep/Mine.yaml is written. Next: dflash preflight deep/Mine.yaml\n")
    recipe = load_recipe(Path("deep/Mine.yaml"))
    assert [source.path for source in recipe.data.sources] == [tmp_path / "chats.jsonl", Path("/data/*.gz")]
    assert (recipe.name, recipe.target.path) == ("mine", tmp_path / "models" / "big")
    changed = {one.name for one in explained(recipe) if one.changed}
    assert changed == {"name", "data.sources", "target.path"}


def test_its_comments_are_settings_as_they_hold():
    text = first_recipe(file="a.yaml", name="a", sources=["b"], target="c")
    without_marks = re.sub(r"^# (?=\w+:$)", "", text, flags=re.M)
    without_marks = re.sub(r"^#   (?=\w+: )", "  ", without_marks, flags=re.M)
    (section_and_keys,) = [without_marks.partition("# What most runs change")[2]]
    for section, key in CHOICES.values():
        assert re.search(rf"^{section}:$", section_and_keys, re.M)
        assert re.search(rf"^  {key}: ", section_and_keys, re.M)
    from dflash_pipeline.recipe.text import read_yaml

    plain, marked = (Recipe.model_validate(read_yaml(form)) for form in (text, without_marks))
    assert plain == marked


@given(st.lists(TEXT, min_size=1, max_size=3), TEXT)
def test_any_path_comes_back_as_it_was(sources, target):
    from dflash_pipeline.recipe.text import read_yaml

    read = read_yaml(first_recipe(file="a.yaml", name="a", sources=sources, target=target))
    assert [source["path"] for source in read["data"]["sources"]] == sources
    assert read["target"]["path"] == target


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("there.yaml", "--source", "a", "--target", "b"), "there.yaml"),
        (("no/folder.yaml", "--source", "a", "--target", "b"), "no"),
        (("new.yaml", "--source", "a", "--target", "b", "--name", "Two Words"), "new.yaml"),
        (("new.yaml", "--target", "b"), "dflash init"),
    ],
)
def test_what_cannot_be_begun_is_refused_and_nothing_is_written(dflash, tmp_path, monkeypatch, arguments, where):
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text("mine")
    ran = dflash("init", *arguments, "--json")
    assert (ran.code, ran.document["error"]["where"]) == (2, where)
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]
    assert Path("there.yaml").read_text() == "mine"
