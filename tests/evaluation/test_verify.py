"""What a verification notices of an export whose files are whole: a drafter that is no longer the one that was trained.

Each fault keeps every output lossless; only names, shapes or acceptance tell.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_pipeline.evaluation.acceptance import measure_acceptance
from dflash_pipeline.evaluation.carried import CARRIED
from dflash_pipeline.evaluation.export import export_drafter, load_drafter
from dflash_pipeline.evaluation.prompts import Prompt
from dflash_pipeline.evaluation.speculators_format import Verifier
from dflash_pipeline.evaluation.verify import NOISE, Check, verify_export
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.stages.carry_report import carried_acceptance, complete
from dflash_pipeline.store.files import HASH_LIST, file_sha256, folder_faults
from tests.numerics.test_train_export_decode import ANSWER, PROMPT, target_dir, texts, train
from tests.tiny_models import VOCAB, tiny_config

__all__ = ["target_dir", "texts"]  # Fixtures of the module that trains.

CARD = "# Card\n\n## Acceptance\n\nNot measured yet.\n"


@pytest.fixture(scope="module")
def reported(target_dir, texts, tmp_path_factory) -> dict[str, Path]:
    """A trained drafter in both forms, each carrying the report on eight prompts that it learned."""
    trained = train(tiny_config(), target_dir, texts)
    folder = tmp_path_factory.mktemp("reported")
    verifier = Verifier(name_or_path=str(target_dir), architectures=("Qwen3ForCausalLM",))
    prompts = [Prompt(ids=text[:PROMPT].numpy(), source="learned") for text in texts[:8]]
    forms = {"zlab": None, "speculators": verifier}
    for name, names_the_target in forms.items():
        out = folder / name
        export_drafter(
            trained.config, trained.state, target_dir=target_dir, out=out, card=CARD, verifier=names_the_target
        )
        drafter = load_drafter(out)
        target = FrozenTarget.load(target_dir, tap_layer_ids=drafter.config.tap_layer_ids)
        ids = [prompt.ids for prompt in prompts]
        report = measure_acceptance(target, drafter, ids, max_new_tokens=ANSWER, stop_ids=frozenset())
        assert report.mean > 6
        weights = out / "model.safetensors"
        carried = carried_acceptance(report, prompts, weights=weights, max_new_tokens=ANSWER, stop_ids=frozenset())
        assert complete(out, carried, None, report)
        assert not complete(out, carried, None, report)
    return {name: folder / name for name in forms}


@pytest.fixture(params=["zlab", "speculators"])
def export(reported, request, tmp_path) -> Path:
    """One of the two forms, to be spoiled."""
    copy = tmp_path / request.param
    copy.mkdir()
    for path in reported[request.param].iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def checks(folder: Path, target_dir: Path) -> dict[str, Check]:
    return {check.name: check for check in verify_export(folder, target_dir)}


def failed(folder: Path, target_dir: Path) -> set[str]:
    return {name for name, check in checks(folder, target_dir).items() if not check.ok}


def sealed(folder: Path) -> Path:
    """As an exporter with a fault of its own would have left it: the hashes are right."""
    names = sorted(path.name for path in folder.iterdir() if path.name != HASH_LIST)
    (folder / HASH_LIST).write_text("".join(f"{file_sha256(folder / name)}  {name}\n" for name in names))
    assert folder_faults(folder) == []
    return folder


def edit(folder: Path, change) -> Path:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    return sealed(folder)


def test_a_reported_export_passes_with_the_reports_own_figure(export, target_dir):
    found = checks(export, target_dir)
    assert all(check.ok for check in found.values()), found
    said = json.loads((export / CARRIED).read_text())
    assert f"says {np.mean([prompt['mean'] for prompt in said['prompts']]):.3f} on these" in found["acceptance"].detail
    assert f"length {said['mean']:.3f} on 8 of the report's 8" in found["acceptance"].detail
    assert "acceptance length" in (export / "README.md").read_text()


def taps_one_later(raw):
    if "dflash_config" in raw:
        raw["dflash_config"]["target_layer_ids"] = [tap + 1 for tap in raw["dflash_config"]["target_layer_ids"]]
    else:
        raw["aux_hidden_state_layer_ids"] = [tap + 1 for tap in raw["aux_hidden_state_layer_ids"]]


def another_mask(raw):
    raw.get("dflash_config", raw)["mask_token_id"] = VOCAB - 2


def another_base(raw):
    layers = raw.get("transformer_layer_config", raw)
    layers["rope_theta"] = layers["rope_parameters"]["rope_theta"] = 1e6


@pytest.mark.parametrize(
    ("change", "noticed"),
    [(taps_one_later, {"acceptance"}), (another_mask, {"acceptance"}), (another_base, {"acceptance", "target"})],
    ids=["taps", "mask token", "rotary base"],
)
def test_a_wrong_config_fails_by_acceptance(export, target_dir, change, noticed):
    """What the tolerance is far below: the smallest of these takes away more than a third."""
    edit(export, change)
    found = checks(export, target_dir)
    assert {name for name, check in found.items() if not check.ok} == noticed
    assert "where the report says" in found["acceptance"].detail
    measured = float(found["acceptance"].detail.split("acceptance length ")[1].split()[0])
    said = json.loads((export / CARRIED).read_text())["mean"]
    assert measured - 1 < (1 - 3 * NOISE) * (said - 1)


def renamed(state):
    state["fc2.weight"] = state.pop("fc.weight")


@pytest.mark.parametrize(
    ("change", "says"),
    [(renamed, "missing: fc.weight; unknown: fc2.weight"), (lambda state: state.pop("norm.weight"), "missing: norm")],
    ids=["renamed", "missing"],
)
def test_a_tensor_under_another_name_or_none_fails(export, target_dir, change, says):
    state = load_file(export / "model.safetensors")
    change(state)
    save_file(state, export / "model.safetensors")
    found = checks(sealed(export), target_dir)
    assert {name for name, check in found.items() if not check.ok} == {"tensors", "decoding", "acceptance"}
    assert all(says in found[name].detail for name in ("tensors", "decoding"))


def test_other_weights_of_the_same_shape_fail(export, target_dir):
    state = load_file(export / "model.safetensors")
    save_file({name: torch.randn_like(tensor) for name, tensor in state.items()}, export / "model.safetensors")
    assert failed(sealed(export), target_dir) == {"acceptance"}


def test_a_report_that_says_too_little_or_too_much_fails(export, target_dir):
    path = export / CARRIED
    said = json.loads(path.read_text())
    for prompt in said["prompts"]:
        prompt["mean"] = prompt["mean"] * (1 + 2 * NOISE)
    path.write_text(json.dumps(said))
    assert failed(sealed(export), target_dir) == {"acceptance"}


@pytest.mark.parametrize("field", ["mean", "block_size"])
def test_a_report_that_contradicts_itself_or_the_config_fails(export, target_dir, field):
    path = export / CARRIED
    said = json.loads(path.read_text())
    said[field] += 1
    path.write_text(json.dumps(said))
    assert failed(sealed(export), target_dir) == {"acceptance"}


def test_what_a_server_would_load_beside_the_weights_fails(export, target_dir):
    """Listed with its hash: a loader that takes every file of its kind would serve what nobody trained."""
    save_file({"fc.weight": torch.zeros(2, 2)}, export / "model-00002-of-00002.safetensors")
    assert failed(sealed(export), target_dir) == {"tensors"}


def test_a_file_that_nobody_listed_fails(export, target_dir):
    (export / "notes.txt").write_text("mine")
    assert failed(export, target_dir) == {"files"}


def test_a_report_without_prompts_is_refused_by_name(export, target_dir):
    said = json.loads((export / CARRIED).read_text())
    (export / CARRIED).write_text(json.dumps(said | {"prompts": []}))
    assert "CarriedAcceptance" in checks(sealed(export), target_dir)["acceptance"].detail


def test_code_to_run_fails(export, target_dir):
    edit(export, lambda raw: raw.update(auto_map={"AutoModel": "dflash.DFlashDraftModel"}))
    assert failed(export, target_dir) == {"config"}


def test_a_lost_report_is_a_missing_file(export, target_dir):
    (export / CARRIED).unlink()
    assert failed(export, target_dir) == {"files"}
