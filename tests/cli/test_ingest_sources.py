"""`dflash ingest` on folders, patterns, formats and files that cannot be taken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.bad_files import TARGET


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"question": f"How much is {n} and {n}?", "answer": f"It is {2 * n}."} for n in range(3)]
    (data / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (data / "b.csv").write_text('question,answer\n"What, then?","Nothing, really."\n')
    (data / "c.json").write_text('[{"question": "torn"')
    (data / "d.txt").write_text("A document of one line.\n")
    (data / "e.jsonl").write_text('{"prompt": "Who answers?"}\n')
    return data


@pytest.mark.parametrize("source", ["data", "data/*"])
def test_a_folder_and_a_pattern(dflash, folder, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    answer = dflash("ingest", "--source", source, "--tokenizer", TARGET, "--storage", "out", "--json").document
    counted = {f["path"]: (f["accepted"], f["rejected"], f["error"] is None) for f in answer["files"]}
    assert counted == {
        "data/a.jsonl.gz": (3, 0, True),
        "data/b.csv": (1, 0, True),
        "data/c.json": (0, 0, False),
        "data/d.txt": (1, 0, True),
        "data/e.jsonl": (0, 1, True),
    }
    assert (answer["accepted"], answer["by_reason"], answer["num_prompts"]) == (5, {"prompt_without_answer": 1}, 1)
    said = dflash("ingest", "--source", source, "--tokenizer", TARGET, "--storage", "out").out
    assert "not taken: data/c.json byte " in said


def test_a_format_and_a_map_are_said_once_for_all_sources(dflash, folder, tmp_path):
    options = ["--tokenizer", TARGET, "--storage", tmp_path / "out", "--json"]
    document = dflash("ingest", "--source", folder / "b.csv", "--format", "document", *options).document
    assert document["accepted"] == 1
    mapped = dflash(
        "ingest", "--source", folder / "b.csv", "--map", "answer=user,question=assistant", *options
    ).document
    assert mapped["accepted"] == 1
    assert mapped["snapshot"] != document["snapshot"]
    ran = dflash("ingest", "--source", folder / "b.csv", "--format", "xml", *options)
    assert (ran.code, ran.document["error"]["where"]) == (2, "--format")


def test_a_refusal_names_the_files_that_were_not_taken(dflash, folder, tmp_path):
    ran = dflash(
        "ingest", "--source", folder / "c.json", "--tokenizer", TARGET, "--storage", tmp_path / "out", "--json"
    )
    assert ran.code == 2
    assert "the array is not closed" in ran.document["error"]["what"]
    assert ran.document["files"][0]["error"]
