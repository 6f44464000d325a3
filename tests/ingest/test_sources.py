"""Files, folders and patterns: what a recipe names, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.sources import SourceFile, expand


def names(path: Path) -> list[str]:
    return [found.path.name for found in expand([SourceFile(path=path, mapping={"text": "t"})])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.json.gz", "c.txt", "notes.docx", ".hidden.jsonl", "part[1].jsonl", "part1.jsonl"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "deep" / ".git").mkdir(parents=True)
    (tmp_path / "deep" / "d.parquet").touch()
    (tmp_path / "deep" / ".git" / "e.json").touch()
    return tmp_path


def test_a_folder_gives_its_known_files_sorted(folder: Path) -> None:
    assert names(folder) == ["a.json.gz", "b.jsonl", "c.txt", "d.parquet", "part1.jsonl", "part[1].jsonl"]


def test_a_pattern_gives_every_file_it_matches_sorted(folder: Path) -> None:
    assert names(folder / "*.jsonl") == ["b.jsonl", "part1.jsonl", "part[1].jsonl"]
    assert names(folder / "notes.*") == ["notes.docx"]
    assert names(folder / "**" / "*.parquet") == ["d.parquet"]
    assert names(folder / "part[0-9].jsonl") == ["part1.jsonl"]


def test_what_exists_is_meant_literally(folder: Path) -> None:
    assert names(folder / "part[1].jsonl") == ["part[1].jsonl"]
    (folder / "*.jsonl").touch()
    assert names(folder / "*.jsonl") == ["*.jsonl"]


def test_a_folder_with_brackets_in_its_name_holds_patterns(tmp_path: Path) -> None:
    for name in ("run[1]", "run1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jsonl").touch()
    assert names(tmp_path / "run[1]" / "*.jsonl") == ["run[1].jsonl"]
    assert names(tmp_path / "run[1]") == ["run[1].jsonl"]


def test_settings_go_to_every_file(folder: Path) -> None:
    found = expand([SourceFile(path=folder / "*.jsonl", mapping={"text": "t"}, format="jsonl", weight=2.5)])
    assert {(f.format, f.mapping["text"], f.weight) for f in found} == {("jsonl", "t", 2.5)}


@pytest.mark.parametrize("pattern", ["*.csv", "no/*.jsonl", "deep/*.json"])
def test_nothing_found_is_refused(folder: Path, pattern: str) -> None:
    with pytest.raises(Refused, match="matches it"):
        expand([SourceFile(path=folder / pattern)])
