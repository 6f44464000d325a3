"""`dflash export` and `dflash promote` on the storage of a whole run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dflash_pipeline.store.files import folder_faults


@pytest.fixture
def own(chain, dflash, tmp_path, monkeypatch):
    """A copy of the chain, with its storage as the one that commands use."""
    copy = chain.copy(tmp_path / "storage")
    monkeypatch.setenv("DFLASH_STORAGE", str(copy.storage.root))
    return copy


def test_the_run_carries_its_own_report_and_says_who_is_champion(chain):
    export = Path(chain.facts["export_dir"])
    carried = json.loads((export / "acceptance.json").read_text())
    assert carried["mean"] == chain.facts["acceptance"]["trained"]
    assert len(carried["prompts"]) <= carried["num_prompts"] == chain.facts["acceptance"]["num_prompts"]
    assert folder_faults(export) == []
    card = (export / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front)["license"] == "unknown"
    assert f"Mean acceptance length {carried['mean']:.3f}" in text
    assert all(chain.facts[name] in text for name in ("plan", "snapshot", "run"))
    assert chain.facts["promotion"]["run"] == chain.facts["run"]
    assert chain.facts["promotion"]["reason"]


@pytest.mark.parametrize("form", ["zlab", "speculators"])
def test_a_run_is_exported_in_either_form_and_proved(own, dflash, tmp_path, form):
    out = tmp_path / "drafter"
    asked = ("export", own.facts["run"], "--format", form, "--out", out, "--base-model", "Org/Target", "--json")
    ran = dflash(*asked)
    found = ran.document
    assert (ran.code, found["ok"], found["format"]) == (0, True, form)
    assert (found["steps_done"], found["total_steps"]) == (own.facts["total_steps"],) * 2
    acceptance = next(check for check in found["checks"] if check["name"] == "acceptance")
    assert "the report says" in acceptance["detail"]
    front = yaml.safe_load((out / "README.md").read_text().split("---\n", 2)[1])
    assert front["base_model"] == "Org/Target"
    config = json.loads((out / "config.json").read_text())
    assert ("speculators_config" in config) == (form == "speculators")
    if form == "speculators":
        assert config["speculators_config"]["verifier"]["name_or_path"] == "Org/Target"
    again = dflash(*asked)
    assert (again.code, again.document["error"]["what"]) == (2, "something is there already")


def test_a_spoilt_export_is_not_proved(own, dflash, tmp_path):
    out = tmp_path / "drafter"
    assert dflash("export", own.facts["run"], "--out", out, "--json").code == 0
    (out / "acceptance.json").unlink()
    ran = dflash("verify-export", out, "--target", own.facts["target_dir"], "--json")
    assert ran.code == 1
    assert [check["name"] for check in ran.document["checks"] if not check["ok"]] == ["files"]


def test_promoted_by_hand_and_judged(own, dflash):
    run = own.facts["run"]
    none = dflash("promote", own.recipe_file, "--rollback", "--json")
    assert (none.code, "has had" in none.document["error"]["what"]) == (2, True)
    if own.facts["promotion"]["champion"] is None:
        promoted = dflash("promote", "--run", run, "--reason", "it is the first", "--json")
        assert (promoted.code, promoted.document["action"]) == (0, "promoted")
        assert promoted.document["reason"] == "it is the first"
    judged = dflash("promote", own.recipe_file, "--json")
    assert judged.code == 0
    assert judged.document["champion"] == {"run": run, "export_dir": str(own.storage.exports / run)}
    assert judged.document["reused"] is True


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("promote",), "dflash promote"),
        (("promote", "--rollback", "--run", "x"), "--rollback --run"),
        (("export", "nosuch", "--out", "new"), "nosuch"),
        (("export", "..", "--out", "new"), ".."),
        (("export", "x", "--out", "new", "--format", "gguf"), "--format"),
        (("export", "x", "--out", "new", "--licence", "My Own"), "--licence"),
        (("promote", "--run", "../runs"), "runs"),
        (("promote", "--rollback", "--storage", "nosuch"), "promotions.jsonl"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, where, dflash, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DFLASH_STORAGE", raising=False)
    ran = dflash(*arguments, "--json")
    assert ran.code == 2
    assert where in ran.document["error"]["where"]
    assert list(tmp_path.iterdir()) == []
