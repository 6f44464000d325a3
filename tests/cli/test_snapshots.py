"""`dflash diff-snapshots` on two snapshots that differ by known rows, or by a weight; `show-sample` of copies."""

from __future__ import annotations

import json

import pytest

from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.layout import Storage
from tests.cli.bad_files import TARGET
from tests.conftest import write_recipe


def ingested(dflash, path, rows):
    lines = [{"id": key, "question": f"What is {key}?", "answer": text} for key, text in rows.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    options = ["--source", path, "--tokenizer", TARGET, "--map", "question=user,answer=assistant", "--max-length", 60]
    return dflash("ingest", *options, "--storage", path.parent / "storage", "--json").document["snapshot"]


@pytest.fixture
def two(dflash, tmp_path):
    before = ingested(dflash, tmp_path / "a.jsonl", {"a": "First.", "b": "Second.", "c": "Third."})
    after = ingested(dflash, tmp_path / "a.jsonl", {"a": "First.", "b": "Edited.", "d": "word " * 200})
    return before, after


def test_diff_snapshots(dflash, two, tmp_path):
    storage = ["--storage", tmp_path / "storage"]
    found = dflash("diff-snapshots", *two, *storage, "--json").document
    assert {kind: value["ids"] for kind, value in found["rows"].items() if kind != "unchanged"} == {
        "added": ["d"],
        "removed": ["c"],
        "changed": ["b"],
    }
    assert found["rows"]["unchanged"] == 1
    assert found["after"]["cut"] == {"count": 1, "ids": ["d"]}
    assert found["before"]["lengths"].keys() == {"mean", "shortest", "median", "p90", "p99", "longest"}
    assert found["after"]["lengths"]["longest"] == 60

    text = dflash("diff-snapshots", *two, *storage).out
    assert "1 rows added: d\n1 rows removed: c\n1 rows changed: b\n1 rows unchanged\n" in text
    assert "cut at the longest length: 0 before, 1 after" in text


def test_a_snapshot_that_is_not_there(dflash, two, tmp_path):
    ran = dflash("diff-snapshots", two[0], "nothing", "--storage", tmp_path / "storage", "--json")
    assert ran.code == 2
    assert two[0] in ran.document["error"]["fix"]


def weighted(tmp_path, weight):
    """The snapshot of ten rows, of which one has its own source and this weight."""
    answers = {f"id{n}": "so " * (n + 2) for n in range(10)}
    for name, keys in (("one", ["id0"]), ("rest", list(answers)[1:])):
        lines = [{"id": key, "question": f"What is {key}?", "answer": answers[key]} for key in keys]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    data = {
        "sources": [{"path": "one.jsonl", "weight": weight}, {"path": "rest.jsonl"}],
        "max_rows": None,
        "validation_fraction": 0.0,
    }
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml", data=data, responses={"enabled": False}))
    storage = Storage(root=tmp_path / "storage")
    ingestion = make_conversations(recipe, storage).record
    return make_snapshot(
        recipe, storage, ingestion, make_responses(recipe, storage, ingestion).record
    ).record.fingerprint


def test_weights_in_differences_and_samples(dflash, tmp_path):
    storage = ["--storage", tmp_path / "storage"]
    less, more = weighted(tmp_path, 0.5), weighted(tmp_path, 3)
    text = dflash("diff-snapshots", less, more, *storage).out
    assert "0 rows changed\n10 rows unchanged\n" in text
    assert "samples: 9 before, 12 after" in text
    assert "weight: 1 before, 0 after" in text
    assert "3 copies: samples 0, 1, 2\n" in dflash("show-sample", "id0", *storage).out
    assert dflash("show-sample", "id0", *storage, "--json").document["sample_ids"] == [0, 1, 2]
    assert "copies" not in dflash("show-sample", "id1", *storage).out
