"""Each fault that can be known before work starts, planted: it is found, said in a sentence, and hides no other."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.sources import SourceFile
from dflash_pipeline.ingest.tokenise import TokenRule, tokeniser
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.preflight import Fault, check_training, find_faults, look_over, refuse
from dflash_pipeline.stages.preflight import subject as subject_module
from dflash_pipeline.stages.preflight.sample import Effort, SourceSample, sample_source
from dflash_pipeline.stages.preflight.sources import check_coverage
from dflash_pipeline.stages.preflight.subject import gather
from dflash_pipeline.store.layout import Storage
from tests.conftest import ROOT
from tests.stages.preflight_cases import ROOMY, TARGET, faults, recipe, spoiled_target, with_rows


def only(found: tuple[Fault, ...]) -> Fault:
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


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
        ("drafter", {"layer_types": ["full_attention"] * 2}, "drafter.layer_types", "for 1 layers", "each layer"),
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


def chat(number: int, answer: str = "It is so.") -> dict[str, str]:
    return {"question": f"How about {number}?", "answer": answer}


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nosuch.jsonl", "no such file"),
        ("*.nothing", "no file has this name"),
        ("hollow", "no file of a known format"),
        ("odd.bin", "not a known format"),
        ("empty.jsonl", "no row"),
        ("torn.jsonl.gz", "damaged"),
        ("wide.json", "UTF-16"),
    ],
)
def test_a_source_that_gives_nothing(tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "odd.bin").write_bytes(b"\0\1\2")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abc"}\n' * 1000)[:-20])
    (tmp_path / "wide.json").write_bytes("[]".encode("utf-16"))
    good = with_rows(tmp_path, "good.jsonl", [chat(n) for n in range(9)])["sources"]
    fault = only(faults(tmp_path, data={"sources": [*good, {"path": path}]}))
    assert what in fault.what


def test_one_damaged_file_of_a_folder_costs_nothing_here(tmp_path: Path) -> None:
    """Ingestion takes the others, and the check of rejected rows warns of it."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "damaged.json").write_text("[")
    with_rows(tmp_path / "rows", "good.jsonl", [chat(n) for n in range(9)])
    assert faults(tmp_path, data={"sources": [{"path": "rows"}]}) == ()


@pytest.mark.parametrize(("bad", "refused"), [(5, False), (6, True)])
def test_rejected_rows_count_against_the_recipes_bound(tmp_path: Path, bad: int, refused: bool) -> None:
    rows: list[object] = [chat(n) for n in range(10 - bad)] + [{"question": n, "answer": "a"} for n in range(bad)]
    found = faults(tmp_path, data=with_rows(tmp_path, "rows.jsonl", rows) | {"rejection_block": 0.5})
    assert [fault.what for fault in found] == (
        ["6 of the first 10 rows are rejected (6 unsupported_content), more than 50%"] if refused else []
    )


@pytest.mark.parametrize(("answered", "refused"), [(True, False), (False, True)])
def test_prompts_are_lost_only_if_nobody_answers_them(tmp_path: Path, answered: bool, refused: bool) -> None:
    rows: list[object] = [chat(0), *({"question": f"Which is {n}?"} for n in range(9))]
    data = with_rows(tmp_path, "rows.jsonl", rows)
    found = faults(tmp_path, data=data, responses={"enabled": answered})
    assert [fault.what for fault in found] == (
        ["9 of the first 10 rows are rejected (9 prompt_without_answer), more than 50%"] if refused else []
    )


TOKENS = [5, 300, 301, 302, 303, 304]
PROMPTS = {"prompts": str(ROOT / "examples" / "conversations" / "gsm8k_test.jsonl")}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_ids": TOKENS, "loss_mask": [1] * 6}, "100 % of the tokens of its first 8 tokenised rows"),
        ({"input_ids": TOKENS, "loss_mask": [0] * 6}, "0 % of the tokens of its first rows are supervised (8 no_super"),
        (
            {"input_ids": [9999, 5, 6], "loss_mask": [0, 1, 1]},
            "0 % of the tokens of its first rows are supervised (8 u",
        ),
        ({"input_ids": TOKENS, "loss_mask": [0, 0, 1, 1, 1, 1]}, ""),
        ({"text": "Raw text is what it is, from its first word to its last."}, ""),
        (
            {"question": "Why?", "answer": "So. " * 300},
            "0 % of the tokens of its first rows are supervised (8 too_long",
        ),
    ],
)
def test_coverage_of_none_or_all(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    data = with_rows(tmp_path, "rows.jsonl", [row] * 8) | {"overlong": "drop"}
    found = faults(tmp_path, data=data, evaluation=PROMPTS)
    assert [fault.what.startswith(said) for fault in found] == ([True] if said else [])


def test_documents_alone_leave_nothing_to_measure_on(tmp_path: Path) -> None:
    data = with_rows(tmp_path, "rows.jsonl", [{"text": "Once upon a time."}] * 8)
    fault = only(faults(tmp_path, data=data))
    assert (fault.where, fault.what) == ("evaluation.prompts", "none is named, and no source holds chats to measure on")
    assert faults(tmp_path, data=data, evaluation=PROMPTS) == ()


def test_a_mask_token_that_the_data_hold(tmp_path: Path) -> None:
    data = with_rows(tmp_path, "rows.jsonl", [{"input_ids": [3, *TOKENS], "loss_mask": [0, 0, 0, 1, 1, 1, 1]}])
    fault = only(faults(tmp_path, data=data, evaluation=PROMPTS))
    assert "mask token 3, taken because none is set, is '<|mask|>', which occurs in" in fault.what
    assert fault.fix == "set mask_token_id to a token that does not occur in the data"


def test_a_template_that_supervises_prompts_too(tmp_path: Path) -> None:
    """No template is known that comes so far: it is refused when it is read."""
    storage = Storage(root=tmp_path / "storage")
    subject = gather(recipe(tmp_path), storage, num_ranks=2, machine=ROOMY, with_data=True)
    assert list(check_coverage(subject)) == []
    [sample] = subject.samples
    all_of_it = replace(sample.chats, num_supervised=sample.chats.num_tokens)
    [fault] = check_coverage(replace(subject, samples=(replace(sample, chats=all_of_it),)))
    assert fault.what == "100 % of the tokens of its first 32 chats are supervised, prompts too"


def test_of_many_rows_the_first_are_read_and_of_many_files_three(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for name in "abcde":
        with_rows(tmp_path / "rows", f"{name}.jsonl", [{**chat(n), "file": name} for n in range(5000)])
    many = recipe(tmp_path, data={"sources": [{"path": "rows"}], "max_rows": None})
    found = look_over(many, Storage(root=tmp_path / "storage"), machine=ROOMY)
    assert found.faults == ()
    assert any("192 rows of 3 files (of 5)" in line for line in found.seen)
    few = look_over(recipe(tmp_path), Storage(root=tmp_path / "storage"), machine=ROOMY)
    assert any("32 rows of 1 files (of 1)" in line for line in few.seen)


def test_long_rows_and_slow_files_are_not_read_far(tmp_path: Path) -> None:
    renderer = ChatRenderer(TARGET)
    tokenise = tokeniser(renderer, TokenRule(max_length=10**6))
    source = SourceFile(path=tmp_path / "rows.jsonl")
    enough = Effort(rows=64, seconds=60.0, characters=10_000)

    def sampled(rows: list[object], effort: Effort) -> SourceSample:
        with_rows(tmp_path, "rows.jsonl", rows)
        return sample_source(source, Limits(), effort, tokenise)

    rows: list[object] = [chat(n, "word " * 20) for n in range(40)]
    assert sampled(rows, enough).num_rows == 40
    assert sampled(rows, replace(enough, characters=1000)).num_rows in range(8, 11)
    assert sampled(rows, replace(enough, seconds=0.0)).num_rows == 1
    long = sampled([chat(0, "word " * 3000), chat(1)], enough)
    assert (long.num_rows, long.num_taken, long.chats.num_samples) == (1, 1, 0)
    document = sampled([{"text": "word " * 3000}], enough)
    whole = len(renderer.tokenizer("word " * 3000)["input_ids"])
    assert document.documents.num_tokens == pytest.approx(whole * 10_000 / 15_000, rel=0.01)


def test_many_sources_share_the_effort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_module, "_CHARACTERS", 6000)
    data = with_rows(tmp_path, "rows.jsonl", [chat(n, "word " * 20) for n in range(60)])
    one = look_over(recipe(tmp_path, data=data), Storage(root=tmp_path), machine=ROOMY)
    two = look_over(recipe(tmp_path, data={"sources": data["sources"] * 2}), Storage(root=tmp_path), machine=ROOMY)
    read = [int(line.partition("rows.jsonl: ")[2].split()[0]) for line in (*one.seen, *two.seen) if "jsonl" in line]
    assert read[0] in range(16, 20)
    assert read[1:] == [(read[0] + 1) // 2] * 2


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
