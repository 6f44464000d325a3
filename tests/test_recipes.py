"""The recipe for 8 GPUs: the drafter that z-lab published, and every key of it in use at a size for a CPU."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml

from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.drafter_shape import drafter_of
from dflash_pipeline.stages.dry_run.target import target_size
from dflash_pipeline.stages.launch_config import training_settings
from dflash_pipeline.stages.plan_files import read_lengths
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.settings import LaunchConfig
from tests.conftest import ROOT, Chain

RECIPE = ROOT / "recipes" / "qwen3-8b-8gpu.yaml"
ROWS = {
    "path": str(ROOT / "examples/conversations/gsm8k_train.jsonl"),
    "map": {"user": "question", "assistant": "answer"},
}
SIZES = {
    "data.sources": [ROWS],
    "data.max_rows": 100,
    "data.max_length": 160,
    "target.path": str(ROOT / "examples/target"),
    "batching.token_budget": 320,
    "drafter.tap_layer_ids": [0, 1, 2],
    "drafter.mask_token_id": 3,
    "drafter.intermediate_size": 64,
    "training.device": "cpu",
    "training.threads_per_rank": 1,
    "evaluation.num_prompts": 2,
    "evaluation.max_new_tokens": 12,
}
"""Where data and target lie, how large things are, and the device: all that a toy run sets otherwise."""


def test_it_is_the_historys_run() -> None:
    recipe = load_recipe(RECIPE)
    assert (recipe.data.max_length, recipe.batching.epochs, recipe.training.num_ranks) == (8192, 6, 8)
    assert (recipe.training.device, recipe.batching.slots_per_step) == ("cuda", 8)


def test_its_drafter_has_the_published_shape() -> None:
    """As the published config.json has it: five layers of the target's width, block 16, taps and mask token."""
    recipe = load_recipe(RECIPE)
    config = asdict(drafter_of(recipe, target_size(recipe.target.path).config))
    expected = {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_layers": 5,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "rope_theta": 1e6,
        "block_size": 16,
        "tap_layer_ids": (1, 9, 17, 25, 33),
        "mask_token_id": 151_669,
        "num_target_layers": 36,
        "layer_types": ("full_attention",) * 5,
    }
    assert {name: config[name] for name in expected} == expected
    assert training_settings(recipe).objective.decay == pytest.approx(7)


def test_the_lengths_beside_it_are_those_of_the_reference_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    law = importlib.import_module("reference_lengths")
    found = read_lengths(ROOT / "examples" / "qwen3-8b" / "lengths.parquet").num_tokens
    assert found.size == 902_000
    assert np.array_equal(found, np.sort(law.reference_lengths()))


def test_what_is_to_be_set_is_said_at_its_head() -> None:
    head = RECIPE.read_text(encoding="utf-8").partition("\nname:")[0]
    for setting in ("data.sources[0].path", "target.path", "evaluation.prompts"):
        assert f"#   {setting} " in head
    keys = {f"{section}.{key}" for section, values in raw().items() if isinstance(values, dict) for key in values}
    assert len(keys - SIZES.keys()) > 15  # Left as they are in the run below.


def raw() -> dict[str, object]:
    recipe: dict[str, object] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    return recipe


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_at_toy_size_it_runs_on_eight_ranks_through_the_assets(tmp_path: Path) -> None:
    toy = Chain(recipe_file=RECIPE, storage=Storage(root=tmp_path / "storage"), facts={})
    overrides = [part for key, value in SIZES.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    promised = toy.answer("run", "--plan-only", *overrides)
    said = toy.answer("run", "--dry-run", *overrides)
    facts = toy.answer("run", *overrides, timeout=800)
    plans = [(answer["plan"], answer["total_steps"]) for answer in (promised, said, facts)]
    assert len(set(plans)) == 1
    assert facts["total_steps"] > 30  # Enough for a time model.
    run_dir = Path(facts["run_dir"])
    record = load_record(run_dir / "run.json", RunRecord)
    assert (record.status, [attempt.num_ranks for attempt in record.attempts]) == ("finished", [8])
    assert len(facts["epochs"]) == 6
    launched, asked = load_record(run_dir / "launch.json", LaunchConfig), load_recipe(RECIPE)
    assert launched.settings == training_settings(asked)
    assert (launched.drafter.num_layers, launched.drafter.block_size) == (5, 16)
    assert facts["loss"]["last"] < facts["loss"]["first"]
    assert facts["acceptance"]["lossless"]
    measured = toy.answer("run", "--dry-run", *overrides)["hours"]
    assert measured["origin"] == "measured"
    assert measured["low"] > 0
