"""`dflash preflight`: exit codes, what scripts and people read, and that nothing starts with a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, write_recipe

DEMO = ROOT / "recipes" / "demo.yaml"


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """With three faults; its storage would be in the working directory."""
    return write_recipe(
        tmp_path / "wrong.yaml",
        drafter={"mask_token_id": 2, "tap_layer_ids": [1, 1]},
        evaluation={"prompts": "nosuch.jsonl"},
    )


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_without_a_fault(dflash):
    ran = dflash("preflight", DEMO, "--json")
    assert (ran.code, ran.document["faults"]) == (0, [])
    spoken = dflash("preflight", DEMO)
    assert spoken.code == 0
    assert spoken.out.startswith("no fault found; looked at:\n  target: 4 layers")
    assert list(Path.cwd().iterdir()) == []


def test_with_faults(dflash, wrong):
    ran = dflash("preflight", wrong, "--json")
    assert ran.code == 1
    assert [fault.keys() for fault in ran.document["faults"]] == [{"where", "what", "fix"}] * 3
    assert [fault["where"] for fault in ran.document["faults"]] == [
        *("drafter.tap_layer_ids", "drafter.mask_token_id", str(wrong.with_name("nosuch.jsonl"))),
    ]
    spoken = dflash("preflight", wrong)
    assert (spoken.code, spoken.err) == (1, "")
    assert spoken.out.splitlines()[1] == (
        "mask token 2 is '<|im_end|>', the tokenizer's end token — drafter.mask_token_id — "
        "set mask_token_id to 3 (<|mask|>)"
    )
    assert len(spoken.out.splitlines()) == 3


def test_a_recipe_that_cannot_be_read_is_refused(dflash, tmp_path):
    (tmp_path / "bad.yaml").write_text("name: [")
    for recipe in (tmp_path / "nosuch.yaml", tmp_path / "bad.yaml"):
        ran = dflash("preflight", recipe, "--json")
        assert ran.code == 2
        assert ran.document["error"]["where"] == str(recipe)


def test_ranks_settings_and_storage_of_the_call(dflash, tmp_path):
    ran = dflash("preflight", DEMO, "--num-ranks", 3, "--set", "drafter.tap_layer_ids=[0, 3]", "--json")
    assert [fault["where"] for fault in ran.document["faults"]] == ["drafter.tap_layer_ids", "training.num_ranks"]
    (tmp_path / "file").touch()
    ran = dflash("preflight", DEMO, "--storage", tmp_path / "file", "--json")
    assert [fault["where"] for fault in ran.document["faults"]] == [str(tmp_path / "file")]


def test_a_run_lists_them_all_and_starts_nothing(dflash, wrong):
    ran = dflash("run", wrong, "--json")
    assert ran.code == 2
    assert ran.document["error"]["what"].startswith("3 faults: (1) drafter.tap_layer_ids: ")
    assert ran.document["faults"] == dflash("preflight", wrong, "--json").document["faults"]
    assert list(Path.cwd().iterdir()) == []
    spoken = dflash("run", wrong)
    assert (spoken.code, spoken.err.count("\n")) == (2, 1)


def test_training_alone_begins_with_it(dflash, chain):
    """On a plan that is there; the run it would make is another one, since the finished one is reused as it is."""
    place = f"storage={chain.storage.root}"
    ran = dflash("train", chain.recipe_file, "--set", place, "--set", "training.device=cuda", "--fresh", "--json")
    if ran.document.get("error", {}).get("where") != "training.device":
        pytest.fail(ran.out)
    assert ran.code == 2
    assert "CUDA" in ran.document["error"]["what"]
