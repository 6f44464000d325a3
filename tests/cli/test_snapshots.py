"""`dflash diff-snapshots` on two snapshots that differ by known rows."""

from __future__ import annotations

import json

import pytest

from tests.cli.bad_files import TARGET


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
