"""The keys and values that scripts read from each command's answer, on data small enough to check by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.bad_files import TARGET

EPOCH_KEYS = {
    *("epoch", "num_steps", "num_micro_batches", "num_samples", "dropped", "fillers", "real_tokens", "padded_tokens"),
    *("padding_efficiency", "overall_efficiency", "length_distance_w1t", "pair_repetition", "digest"),
}
SHOWN_KEYS = EPOCH_KEYS - {"overall_efficiency", "length_distance_w1t", "pair_repetition"}


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([3, 3, 5, 5, 8, 8]))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    good = [{"id": f"row-{n}", "question": f"How much is {n} and {n}?", "answer": f"It is {2 * n}."} for n in range(3)]
    path.write_text("\n".join([*map(json.dumps, good), json.dumps(good[0]), '{"question": "torn']))
    return path


def test_boundaries(dflash, lengths):
    answer = dflash("boundaries", "--lengths", lengths, "--buckets", "2", "--json").document
    assert answer.keys() >= {"boundaries", "efficiency", "seconds"}
    assert answer["boundaries"] == [0, 5, 8]
    assert answer["efficiency"] == pytest.approx(32 / 36)
    assert dflash("boundaries", "--lengths", lengths, "--buckets", "2").out == "[0, 5, 8]  efficiency 0.8889\n"


def test_plan_and_manifest(dflash, lengths, tmp_path):
    options = ["--lengths", lengths, "--token-budget", 16, "--slots-per-step", 2, "--epochs", 2, "--json"]
    plan = dflash("plan", *options, "--out", tmp_path / "plan").document
    assert plan["seconds"].keys() == {"plan", "write", "compile"}
    assert [epoch.keys() for epoch in plan["epochs"]] == [EPOCH_KEYS, EPOCH_KEYS]
    assert plan["epochs"][0]["pair_repetition"] is None
    assert plan["total_steps"] == sum(epoch["num_steps"] for epoch in plan["epochs"])
    assert all(epoch["real_tokens"] == 32 and epoch["num_samples"] == 6 for epoch in plan["epochs"])

    shown = dflash("manifest", "show", tmp_path / "plan", "--json").document
    assert shown["plan"] == plan["plan"]
    assert shown["epochs"] == [{key: epoch[key] for key in SHOWN_KEYS} for epoch in plan["epochs"]]
    verified = dflash("manifest", "verify", tmp_path / "plan", "--json").document
    assert (verified["ok"], verified["faults"]) == (True, [])

    dflash("plan", *options, "--out", tmp_path / "other", "--seed", 1)
    same = dflash("manifest", "diff", tmp_path / "plan", tmp_path / "plan", "--json").document
    other = dflash("manifest", "diff", tmp_path / "plan", tmp_path / "other", "--json").document
    assert (same["same"], same["spec"]) == (True, {})
    assert (other["same"], other["spec"]) == (False, {"seed": [0, 1]})


def test_ingest_then_look_at_rows_and_samples(dflash, rows, tmp_path):
    place = ["--storage", tmp_path / "storage"]
    options = ["--tokenizer", TARGET, "--map", "question=user,answer=assistant", *place, "--json"]
    answer = dflash("ingest", "--source", rows, *options).document
    assert (answer["accepted"], answer["rejected"], answer["exact_duplicates"]) == (3, 1, 1)
    assert sum(answer["by_reason"].values()) == 1
    assert [file.keys() for file in answer["files"]] == [{"path", "accepted", "rejected", "exact_duplicates", "error"}]
    assert 0 < answer["num_supervised_tokens"] < answer["num_tokens"]
    assert dflash("ingest", "--source", rows, *options).document["snapshot"] == answer["snapshot"]

    [row] = dflash("rejected", *place, "--json").document
    assert row.keys() == {"file", "line", "byte_offset", "id", "reason", "excerpt"}
    assert (row["line"], row["excerpt"]) == (5, '{"question": "torn')
    assert rows.read_bytes()[row["byte_offset"] :].decode() == row["excerpt"]

    sample = dflash("show-sample", "row-2", *place, "--json").document
    assert sample["num_tokens"] > sample["num_supervised_tokens"] > 0
    assert "It is 4." in sample["supervised_text"]
    assert "How much is 2 and 2?" in sample["text"]
    assert "How much" not in sample["supervised_text"]


def test_without_json_a_person_reads_text(dflash, rows, tmp_path):
    place = ["--storage", tmp_path / "storage"]
    options = ["--tokenizer", TARGET, "--map", "question=user,answer=assistant", *place]
    assert "3 accepted, 1 rejected, 1 exact duplicates" in dflash("ingest", "--source", rows, *options).out
    assert "rows.jsonl:5 (byte " in dflash("rejected", *place).out
    assert "--- supervised ---" in dflash("show-sample", "row-1", *place).out


def test_plan_only_reuses_and_says_so(dflash, rows, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"""
        name: small
        storage: {tmp_path / "storage"}
        data:
          sources: [{{path: rows.jsonl, map: {{user: question, assistant: answer}}}}]
          validation_fraction: 0.4
          max_length: 512
        target: {{path: {TARGET}}}
        responses: {{enabled: false}}
        drafter: {{num_layers: 2, tap_layer_ids: [0, 2]}}
        batching: {{slots_per_step: 1, epochs: 2}}
        training: {{num_ranks: 1}}
        """
    )
    first = dflash("run", recipe, "--plan-only", "--json").document
    again = dflash("run", recipe, "--plan-only", "--json", "--set", "batching.epochs=3").document
    assert first.keys() >= {"rows", "snapshot", "plan", "total_steps", "epochs", "target_dir", "seconds"}
    assert first["rows"] == {"accepted": 3, "rejected": 1, "exact_duplicates": 1}
    assert {"conversations", "token_sequences"} <= set(again["reused"])
    assert (again["snapshot"], len(again["epochs"])) == (first["snapshot"], 3)
    assert again["plan"] != first["plan"]
    refused = dflash("train", recipe, "--set", "name=never-planned", "--json")
    assert refused.code == 2
    assert refused.document["error"]["where"].endswith("token_sequences.json")


def test_the_facts_of_a_whole_run(chain):
    assert chain.facts.keys() >= {
        *("rows", "snapshot", "plan", "total_steps", "epochs", "loss", "tokens_per_second", "acceptance"),
        *("export_dir", "target_dir", "mlflow_run_id", "seconds"),
    }
    assert chain.facts["loss"].keys() == {"first", "last"}
    assert chain.facts["tokens_per_second"].keys() == {"useful", "padded"}
    assert chain.facts["acceptance"].keys() >= {"untrained", "trained"}
    assert all(epoch.keys() >= {"epoch", "num_steps", "padding_efficiency"} for epoch in chain.facts["epochs"])


def test_evaluate_and_verify_what_the_run_exported(chain, dflash, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"question": "How much is 2 and 2?"}\n{"prompt": "Name a colour."}\n{"turns": ["Hello?"]}\n')
    pair = ["--target", chain.facts["target_dir"], "--json"]
    answer = dflash(
        "evaluate", "--draft", chain.facts["export_dir"], "--prompts", prompts, "--max-new-tokens", 8, *pair
    )
    found = answer.document
    assert answer.code == 0
    assert found["acceptance"].keys() == {"mean", "pooled", "histogram", "per_position", "interval"}
    assert (found["lossless"], found["num_prompts"]) == (True, 3)
    assert [group["name"] for group in found["by_source"]] == ["prompts.jsonl"]
    assert (len(found["prompts"]), found["temperature"], found["expected_speedup"]) == (3, 0.0, None)
    drawn = dflash(
        *("evaluate", "--draft", chain.facts["export_dir"], "--prompts", prompts, "--max-new-tokens", 8, *pair),
        *("--temperature", 1.0, "--batch-size", 2, "--cost-ratio", 0.5),
    ).document
    assert (drawn["lossless"], drawn["temperature"]) == (None, 1.0)
    assert drawn["expected_speedup"] == pytest.approx(drawn["acceptance"]["mean"] / 1.5)
    verified = dflash("verify-export", chain.facts["export_dir"], *pair)
    assert (verified.code, verified.document["ok"]) == (0, True)
    assert all(check.keys() == {"name", "ok", "detail"} for check in verified.document["checks"])


def test_a_plan_is_not_written_over_another(dflash, tmp_path):
    lengths = tmp_path / "lengths.npy"
    np.save(lengths, np.arange(10, 60))
    asked = ("plan", "--lengths", lengths, "--token-budget", 128, "--out", tmp_path / "plan", "--json")
    first = dflash(*asked, "--slots-per-step", 2).document
    refused = dflash(*asked, "--slots-per-step", 4)
    assert refused.code == 2
    assert first["plan"] in refused.document["error"]["what"]
    again = dflash(*asked, "--slots-per-step", 2, "--epochs", 2).document
    assert again["epochs"][0]["digest"] == first["epochs"][0]["digest"]
    assert dflash("manifest", "verify", tmp_path / "plan", "--json").document["ok"]
