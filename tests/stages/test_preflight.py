"""Each fault that can be known before work starts, planted: it is found, said in a sentence, and hides no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.preflight import check_training, find_faults, look_over, refuse
from dflash_pipeline.store.layout import Storage
from tests.conftest import ROOT
from tests.stages.preflight_cases import ROOMY, faults, only, recipe, spoiled_target


def test_the_demo_has_no_fault_and_nothing_is_written(tmp_path: Path) -> None:
    storage = Storage(root=tmp_path / "storage")
    found = look_over(load_recipe(ROOT / "recipes" / "demo.yaml"), storage)
    assert found.faults == ()
    assert [line.partition(":")[0] for line in found.seen][:2] == ["target", "drafter"]
    assert any("64 rows of 1 files" in line and "54% supervised" in line for line in found.seen)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("section", "settings", "where", "what", "fix"),
    [
        ("drafter", {"mask_token_id": 2}, "drafter.mask_token_id", "'<|im_end|>', the tokenizer's end", "3 (<|mask|>)"),
        ("drafter", {"mask_token_id": 0}, "drafter.mask_token_id", "padding", "3 (<|mask|>)"),
        ("drafter", {"mask_token_id": 1}, "drafter.mask_token_id", "chat template prints", "3 (<|mask|>)"),
        ("drafter", {"mask_token_id": 300}, "drafter.mask_token_id", "ordinary text", "3 (<|mask|>)"),
        ("drafter", {"mask_token_id": 1024}, "drafter.mask_token_id", "no row among 1024", "3 (<|mask|>)"),
        ("drafter", {"tap_layer_ids": [2, 0]}, "drafter.tap_layer_ids", "[2, 0]", "ascending"),
        ("drafter", {"tap_layer_ids": [1, 1]}, "drafter.tap_layer_ids", "[1, 1]", "without repeats"),
        ("drafter", {"tap_layer_ids": []}, "drafter.tap_layer_ids", "[]", "give layer numbers"),
        ("drafter", {"tap_layer_ids": [0, 3]}, "drafter.tap_layer_ids", "with 4 layers", "0 to 2"),
        ("drafter", {"tap_layer_ids": None, "num_layers": 3}, "drafter.tap_layer_ids", "rule", "[0, 1, 2]"),
        ("drafter", {"tap_layer_ids": None, "num_layers": 5}, "drafter.tap_layer_ids", "rule", "[0, 1, 2]"),
        ("drafter", {"block_size": 2000}, "drafter.block_size", "1024 positions", "fits"),
        ("drafter", {"layer_types": ["full_attention"] * 2}, "drafter.layer_types", "each of 1 layers", "each layer"),
        ("drafter", {"layer_types": ["sliding_attention"]}, "drafter.sliding_window", "None", "at least 1"),
        ("data", {"validation_fraction": 0.0}, "evaluation.prompts", "holds no conversation out", "file of prompts"),
        ("batching", {"token_budget": 100}, "batching.token_budget", "192 tokens", "at least 192"),
        ("batching", {"micro_batches_per_rank": 3}, "batching.micro_batches_per_rank", "8 slots", "divisor"),
        ("batching", {"padding": "boundary"}, "batching.padding", "window", "bucket"),
        ("evaluation", {"prompts": "nosuch.jsonl"}, "nosuch.jsonl", "no such file", "evaluation.prompts"),
        ("evaluation", {"prompts": "recipe.yaml"}, "recipe.yaml:1", "not JSON", "a row needs"),
        ("data", {"sources": [{"path": "nosuch.jsonl"}]}, "nosuch.jsonl", "no such file", "data.sources"),
        ("target", {"chat_template": "nosuch.jinja"}, "nosuch.jinja", "no chat template", "Jinja file"),
        ("target", {"path": "nosuch"}, "nosuch", "no config.json", "Hugging Face"),
    ],
)
def test_a_setting_that_cannot_work(
    tmp_path: Path, section: str, settings: dict[str, Any], where: str, what: str, fix: str
) -> None:
    found = faults(tmp_path, **{section: settings})
    fault = found[0]
    assert fault.where.endswith(where)
    assert what in fault.what
    assert fix in fault.fix
    # A target that is not there is missed by the tokenizer, too, in other words.
    assert len(found) == (2 if settings == {"path": "nosuch"} else 1)


def test_a_budget_holds_the_longest_sample_unless_such_are_dropped(tmp_path: Path) -> None:
    assert faults(tmp_path, batching={"token_budget": 192}) == ()
    assert faults(tmp_path, batching={"token_budget": 100, "overlong": "drop"}) == ()


def test_ranks_are_those_of_the_call(tmp_path: Path) -> None:
    storage = Storage(root=tmp_path / "storage")
    found = look_over(recipe(tmp_path), storage, num_ranks=3, machine=ROOMY)
    fault = only(found.faults)
    assert (fault.where, fault.fix) == ("training.num_ranks", "use one of [1, 2, 4, 8]")


@pytest.mark.parametrize(
    ("config", "files", "said"),
    [
        ({"vocab_size": 1023}, {}, ["tokens up to 1023, and the target 1023 embedding rows", "table has 1024 rows"]),
        ({"num_key_value_heads": 3}, {}, ["do not divide"]),
        ({"max_position_embeddings": 191}, {}, ["up to 192 tokens for a target with 191 positions"]),
        ({"max_position_embeddings": 192}, {}, []),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, {}, ["last layer cannot be tapped"]),
        (
            {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "num_key_value_heads": 3},
            {},
            ["do not divide", "use layers 0 to 0"],
        ),
        ({"model_type": "t5"}, {}, ["'t5' decodes no text"]),
        ({"eos_token_id": None}, {"generation_config.json": None}, ["names an end token"]),
        ({}, {"generation_config.json": '{"eos_token_id": [2, 3]}'}, ["'<|mask|>', with which the target ends its"]),
        ({}, {"model.safetensors": "torn"}, ["no weights can be read"]),
        ({}, {"model.safetensors.index.json": '{"weight_map": {"a": "b.safetensors"}}'}, []),
        ({}, {"tokenizer.json": None}, ["no tokenizer can be read"]),
        ({}, {"chat_template.jinja": "{% for"}, ["the chat template fails"]),
        ({}, {"chat_template.jinja": "{{ messages[-1].content }}"}, ["nothing of a user's turn"]),
        ({}, {"chat_template.jinja": "{{ messages[0].content }}"}, ["nothing of an assistant's turn"]),
    ],
)
def test_a_target_that_does_not_hold_together(
    tmp_path: Path, config: dict[str, Any], files: dict[str, str | None], said: list[str]
) -> None:
    found = faults(tmp_path, target=spoiled_target(tmp_path, config=config, **files))
    assert len(found) == len(said), [str(fault) for fault in found]
    assert all(any(words in fault.what + fault.fix for fault in found) for words in said)


def test_weights_in_several_files_are_read_by_their_list(tmp_path: Path) -> None:
    target = spoiled_target(tmp_path, **{"model.safetensors": None})
    folder = Path(target["path"])
    save_file({"model.embed_tokens.weight": np.zeros((1024, 4), np.float32)}, folder / "one.safetensors")
    save_file({"copy": np.zeros((7, 7), np.float32)}, folder / "another.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.embed_tokens.weight": "one.safetensors"}}))
    found = look_over(recipe(tmp_path, target=target), Storage(root=tmp_path), machine=ROOMY)
    assert found.faults == ()
    assert found.seen[0].endswith("4,096 weights")
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    assert only(faults(tmp_path, target=target)).what == "gone.safetensors is listed and not there"


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "nobody.jinja").write_text("{{ messages[-1].content }}")
    found = faults(
        tmp_path,
        machine=replace(ROOMY, storage_error="denied", free_memory=0, free_shared_memory=0, port_error="denied"),
        data={"sources": [{"path": "nosuch.jsonl"}], "max_length": 2000},
        target={"chat_template": "nobody.jinja"},
        drafter={
            "mask_token_id": 2,
            "tap_layer_ids": [1, 1, 9],
            "block_size": 2000,
            "layer_types": ["full_attention"] * 2,
        },
        batching={"micro_batches_per_rank": 3},
        training={"device": "cuda"},
        evaluation={"prompts": "nosuch.jsonl"},
    )
    places = [Path(fault.where).name if "/" in fault.where else fault.where for fault in found]
    assert sorted(places) == sorted(
        [
            "nobody.jinja",
            *("drafter.mask_token_id", "drafter.tap_layer_ids", "drafter.tap_layer_ids"),
            *("drafter.block_size", "drafter.layer_types"),
            *("batching.micro_batches_per_rank", "batching.token_budget", "data.max_length"),
            *("storage", "training.num_ranks", "evaluation.num_processes", "training.device", "shm", "127.0.0.1"),
            *("nosuch.jsonl", "nosuch.jsonl"),
        ]
    )


def test_one_refusal_lists_them_all_in_one_line(tmp_path: Path) -> None:
    storage = Storage(root=tmp_path / "storage")
    wrong = recipe(tmp_path, drafter={"mask_token_id": 2, "block_size": 2000}, data={"max_length": 2000})
    found = find_faults(wrong, storage)
    assert len(found) == 4
    with pytest.raises(Refused) as refused:
        refuse(found, recipe_name="tiny")
    assert refused.value.where == "recipe tiny"
    assert refused.value.what.startswith("4 faults: (1) ")
    assert all(str(fault) in refused.value.what for fault in found)
    assert "\n" not in str(refused.value)
    with pytest.raises(Refused) as refused:
        refuse(found[:1], recipe_name="tiny")
    assert str(refused.value) == str(found[0])
    refuse((), recipe_name="tiny")


def test_training_alone_asks_for_no_source(tmp_path: Path) -> None:
    storage = Storage(root=tmp_path / "storage")
    gone = recipe(tmp_path, data={"sources": [{"path": "nosuch.jsonl"}]}, evaluation={"prompts": "nosuch.jsonl"})
    check_training(gone, storage, num_ranks=2)
    seen = look_over(recipe(tmp_path), storage, machine=ROOMY, only_training=True).seen
    assert not any("jsonl" in line for line in seen)
    with pytest.raises(Refused, match="3 ranks cannot share 8 slots"):
        check_training(gone, storage, num_ranks=3)
    assert len(find_faults(gone, storage)) == 2
