from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel
from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.store.records import load_record, save_record

RECORDS = [
    Position(epoch=2, step=41),
    BatchingSpec(
        strategy="bucket",
        token_budget=4096,
        slots_per_step=8,
        boundaries=(64, 4096),
        cost=CostModel(quadratic_length=1 / 3),
    ),
    Conversation(
        conversation_id="7 ",
        messages=(Message(role="user", content="é\u2028\0"), Message(role="assistant", content="a", complete=False)),
        split="train",
        file="a.jsonl",
        line=1,
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_equal(tmp_path: Path, record: object) -> None:
    path = tmp_path / "folder" / "record.json"
    save_record(path, record)
    assert load_record(path, type(record)) == record
    json.loads(path.read_bytes())


@pytest.mark.parametrize(
    "text", ["", "{", '{"epoch": 1}', '{"epoch": -1, "step": 0}', '{"epoch": "one", "step": 0}', "[1, 2]", "\0"]
)
def test_what_is_not_the_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "position.json"
    path.write_text(text)
    with pytest.raises(Refused, match="not a valid Position") as refusal:
        load_record(path, Position)
    assert refusal.value.where == str(path)


def test_a_missing_record_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no Position here") as refusal:
        load_record(tmp_path / "position.json", Position)
    assert "dflash run" in refusal.value.fix


def test_a_folder_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a valid Position"):
        load_record(tmp_path, Position)
