"""Whose weight a file has: that of the source which names it, however the files were called when they were read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import Data, Recipe, Source, Target
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.source_weights import file_weights
from dflash_pipeline.store.layout import Storage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "many/b", "many/c"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"question": name, "answer": "yes", "other": "no"}) + "\n")
    return tmp_path


def read(folder: Path, *sources: dict[str, Any]) -> tuple[Data, Ingestion]:
    data = Data(sources=[Source(**{**source, "path": folder / source["path"]}) for source in sources])
    recipe = Recipe(name="weights", data=data, target=Target(path=folder))
    return data, make_conversations(recipe, Storage(root=folder / "storage")).record


def names(ingestion: Ingestion) -> list[str]:
    return [Path(source.file).name for source in ingestion.sources]


def test_every_file_of_a_folder_has_its_weight(folder: Path) -> None:
    data, ingestion = read(folder, {"path": "a.jsonl", "weight": 0.5}, {"path": "many", "weight": 3})
    assert names(ingestion) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert file_weights(data, ingestion) == (0.5, 3.0, 3.0)


def test_weights_are_no_part_of_an_ingestion(folder: Path) -> None:
    _, plain = read(folder, {"path": "a.jsonl"}, {"path": "many"})
    data, weighted = read(folder, {"path": "a.jsonl", "weight": 0.5}, {"path": "many", "weight": 3})
    assert weighted == plain
    assert file_weights(data, plain) == (0.5, 3.0, 3.0)


def test_one_weight_for_all_asks_for_no_file(folder: Path) -> None:
    data, ingestion = read(folder, {"path": "a.jsonl", "weight": 2}, {"path": "many", "weight": 2})
    shutil.rmtree(folder / "many")
    assert file_weights(data, ingestion) == (2.0, 2.0, 2.0)


def test_files_that_moved_are_known_by_their_content(folder: Path) -> None:
    _, before = read(folder, {"path": "a.jsonl"}, {"path": "many"})
    # What was one file of a folder is now a source of its own, and another folder has another name.
    (folder / "many" / "b.jsonl").rename(folder / "z.jsonl")
    (folder / "many").rename(folder / "few")
    data, ingestion = read(
        folder, {"path": "a.jsonl"}, {"path": "z.jsonl", "weight": 2}, {"path": "few", "weight": 0.25}
    )
    assert ingestion == before, "found by content: it has the old names"
    assert file_weights(data, ingestion) == (1.0, 2.0, 0.25)


def test_a_file_that_grew_keeps_its_weight(folder: Path) -> None:
    data, ingestion = read(folder, {"path": "a.jsonl", "weight": 0.5}, {"path": "many"})
    (folder / "a.jsonl").write_text("")
    assert file_weights(data, ingestion) == (0.5, 1.0, 1.0)


@pytest.mark.parametrize("change", ["another", "one less", "renamed and edited", "renamed and gone"])
def test_other_files_than_those_that_were_read_are_refused(folder: Path, change: str) -> None:
    data, ingestion = read(folder, {"path": "a.jsonl", "weight": 0.5}, {"path": "many"})
    match change:
        case "another":
            (folder / "many" / "d.jsonl").write_text("")
        case "one less":
            (folder / "many" / "c.jsonl").unlink()
        case "renamed and edited":
            (folder / "many" / "c.jsonl").unlink()
            (folder / "many" / "d.jsonl").write_text("")
        case "renamed and gone":
            data = data.model_copy(update={"sources": [Source(path=folder / "x", weight=0.5), *data.sources[1:]]})
    with pytest.raises(Refused, match="its files are not those that were ingested") as refused:
        file_weights(data, ingestion)
    assert refused.value.where == "data.sources"


def test_a_file_that_could_not_be_read_needs_no_name(folder: Path) -> None:
    (folder / "torn.json").write_text("[")
    data, ingestion = read(folder, {"path": "torn.json", "weight": 2}, {"path": "a.jsonl"})
    (folder / "torn.json").rename(folder / "still torn.json")
    moved = Data(sources=[Source(path=folder / "still torn.json", weight=2), *data.sources[1:]])
    (folder / "still torn.json").write_text("[[")
    assert file_weights(moved, ingestion) == (2.0, 1.0)


def test_a_file_that_two_sources_name_counts_with_the_first(folder: Path) -> None:
    data, ingestion = read(folder, {"path": "many/c.jsonl", "weight": 3}, {"path": "many", "weight": 0.5})
    assert names(ingestion) == ["c.jsonl", "b.jsonl", "c.jsonl"]
    assert [source.exact_duplicates for source in ingestion.sources] == [0, 0, 1]
    assert file_weights(data, ingestion) == (3.0, 0.5, 3.0)


def test_a_file_that_is_read_in_two_ways_has_one_weight(folder: Path) -> None:
    ways = [{"path": "a.jsonl", "map": {"user": "question", "assistant": field}} for field in ("answer", "other")]
    data, ingestion = read(folder, {**ways[0], "weight": 2}, {**ways[1], "weight": 2}, {"path": "many"})
    assert [source.accepted for source in ingestion.sources] == [1, 1, 1, 1]
    assert file_weights(data, ingestion) == (2.0, 2.0, 1.0, 1.0)
    data, ingestion = read(folder, {**ways[0], "weight": 2}, {**ways[1], "weight": 0.5})
    with pytest.raises(Refused, match=r"read .*a\.jsonl in different ways, with weights 2 and 0\.5"):
        file_weights(data, ingestion)
