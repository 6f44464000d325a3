"""A serving engine leaves a missing tensor random and says nothing: the export must be exact, and proved."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation import verify
from dflash_pipeline.evaluation.export import export_drafter, load_drafter
from dflash_pipeline.evaluation.verify import verify_export
from dflash_pipeline.model.drafter import DrafterCache
from tests.tiny_models import strong_drafter, tiny_config, tiny_model

QUESTIONS = ["files", "config", "tensors", "target", "tokenizer", "decoding", "acceptance"]


def answers(folder, target_dir) -> dict[str, bool]:
    return {check.name: check.ok for check in verify_export(folder, target_dir)}


def edit_config(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_the_folder_holds_what_servers_read(exported, target_dir):
    names = {path.name for path in exported.iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert names == {"model.safetensors", "config.json", "README.md", "sha256.txt", *tokenizer}
    assert (exported / "README.md").read_text() == "# Card\n"
    with safe_open(exported / "model.safetensors", "pt") as file:
        assert len(list(file.keys())) == 3 + 11 * 2
        assert file.metadata() == {"format": "pt"}
    config = json.loads((exported / "config.json").read_text())
    assert config["dtype"] == "float32"
    assert config["dflash_config"]["target_layer_ids"] == [1, 3, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_drafter_comes_back_and_drafts_the_same(target_dir, tmp_path, dtype):
    config = tiny_config(window=5)
    drafter = strong_drafter(config).to(dtype)
    export_drafter(config, drafter.state_dict(), target_dir=target_dir, out=tmp_path / "d", card="")
    loaded = load_drafter(tmp_path / "d")
    assert loaded.config == config
    assert loaded.fc.weight.dtype == dtype
    assert loaded.rotary.inv_freq.dtype == torch.float32
    assert torch.equal(loaded.rotary.inv_freq, drafter.rotary.inv_freq)
    features, block = torch.randn(9, 192, dtype=dtype), torch.randn(8, 64, dtype=dtype)
    assert torch.equal(loaded.draft(features, block, DrafterCache()), drafter.draft(features, block, DrafterCache()))


def test_a_whole_export_passes_every_check(exported, target_dir):
    checks = verify_export(exported, target_dir)
    assert [check.name for check in checks] == QUESTIONS
    assert all(check.ok for check in checks), checks
    assert "acceptance length" in checks[-2].detail
    assert "carries no report" in checks[-1].detail


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("fc.weight"), r"missing: fc\.weight"),
        (lambda state: state.update(fc2=torch.ones(2)), "unknown: fc2"),
        (lambda state: state.update({"norm.weight": torch.ones(65)}), r"misshapen: norm\.weight \(65,\)"),
        (lambda state: state.update({"norm.weight": torch.ones(64).bfloat16()}), "types differ"),
    ],
)
def test_other_tensors_than_the_config_implies_are_refused(exported, target_dir, tmp_path, change, says):
    state = load_file(exported / "model.safetensors")
    change(state)
    with pytest.raises(Refused, match=says):
        export_drafter(tiny_config(), state, target_dir=target_dir, out=tmp_path / "other", card="")
    assert not (tmp_path / "other").exists()
    save_file(state, exported / "model.safetensors")
    with pytest.raises(Refused, match=says):
        load_drafter(exported)
    assert answers(exported, target_dir) == {
        "files": False,
        "config": True,
        "tensors": False,
        "target": True,
        "tokenizer": True,
        "decoding": False,
        "acceptance": False,
    }


def test_a_config_that_misses_a_place_fails_its_check(exported, target_dir):
    edit_config(exported, rope_theta=None)
    assert not answers(exported, target_dir)["config"]


def test_missing_taps_fail_and_do_not_decode(exported, target_dir):
    edit_config(exported, dflash_config={"mask_token_id": 210, "block_size": 8})
    found = answers(exported, target_dir)
    assert (found["config"], found["decoding"]) == (False, False)


def test_a_declared_type_that_is_not_the_tensors_fails(exported, target_dir):
    edit_config(exported, dtype="bfloat16")
    assert not answers(exported, target_dir)["tensors"]


def test_broken_numbers_fail(exported, target_dir):
    state = load_file(exported / "model.safetensors")
    state["fc.weight"][0, 0] = float("nan")
    save_file(state, exported / "model.safetensors")
    assert not answers(exported, target_dir)["tensors"]


def test_another_tokenizer_fails(exported, target_dir):
    (exported / "tokenizer.json").write_text("{}")
    assert not answers(exported, target_dir)["tokenizer"]


def test_another_target_fails(exported, target_dir, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(target_dir, other)
    model = tiny_model()
    model.resize_token_embeddings(300)
    model.save_pretrained(other)
    checks = {check.name: check for check in verify_export(exported, other)}
    assert not checks["decoding"].ok
    assert "300" in checks["decoding"].detail


def test_decoding_that_changes_the_targets_words_fails(exported, target_dir, monkeypatch):
    def other(target, drafter, prompt_ids, *, max_new_tokens, stop_ids):
        decoded = draft_and_verify(target, drafter, prompt_ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        return replace(decoded, tokens=(*decoded.tokens[:-1], 0))

    draft_and_verify = verify.draft_and_verify
    monkeypatch.setattr(verify, "draft_and_verify", other)
    assert not answers(exported, target_dir)["decoding"]


def test_unreadable_files_are_named(exported):
    (exported / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(Refused, match=r"model\.safetensors"):
        load_drafter(exported)
    (exported / "config.json").write_text("{")
    with pytest.raises(Refused, match=r"config\.json"):
        load_drafter(exported)
