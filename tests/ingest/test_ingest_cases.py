"""Every `in_` case of tests/cases: what goes in, what must come out."""

from __future__ import annotations

import runpy
import shutil
import tracemalloc
from pathlib import Path

import pytest

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, RejectedRow
from tests.ingest import taking

CASES = Path(__file__).parents[1] / "cases"
MIB = 2**20

Taken = tuple[Ingestion, dict[str, Conversation], list[RejectedRow]]


def take(path: Path, *, max_row_bytes: int = 64 * MIB) -> Taken:
    ingestion, conversations, rejected = taking.take(path, row_bytes=max_row_bytes)
    return ingestion, {c.conversation_id: c for c in conversations}, rejected


def case(name: str) -> Taken:
    return take(CASES / name)


def generated(name: str, folder: Path) -> Path:
    script = Path(shutil.copy(CASES / f"{name}.py", folder))
    runpy.run_path(str(script))
    return folder / f"{name}.jsonl"


def texts(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def refused(rejected: list[RejectedRow]) -> list[tuple[str | None, str, int]]:
    return [(row.conversation_id, row.reason, row.line) for row in rejected]


def test_byte_order_mark() -> None:
    ingestion, taken, _ = case("in_bom.jsonl")
    assert list(taken) == ["b0", "b1", "b2"]
    assert (ingestion.accepted, ingestion.rejected) == (3, 0)


def test_text_that_looks_like_dates_stays_text() -> None:
    _, taken, _ = case("in_date_like_text.jsonl")
    assert [texts(c)[-1] for c in taken.values()] == [
        "2024-05-01",
        "25-11-2025",
        "07:30:00",
        "2024-05-01T07:30:00Z",
        "BBD05AE7-1111-4222-8333-ABCDEFABCDEF",
    ]


def test_ids_are_text_and_derived_ones_are_stable() -> None:
    _, taken, _ = case("in_ids_mixed.jsonl")
    again = case("in_ids_mixed.jsonl")[1]
    assert len(taken) == 5
    assert {"7", "007", "7 "} < set(taken)
    assert list(taken) == list(again)
    derived = {texts(c)[0]: i for i, c in taken.items() if i.startswith("sha256-")}
    assert set(derived) == {"g", "i"}


def test_a_field_that_comes_late(tmp_path: Path) -> None:
    ingestion, taken, _ = take(generated("in_late_field", tmp_path))
    assert ingestion.accepted == 30_001
    assert taken["r30000"].messages[-1].tool_calls == (
        '[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]'
    )


def test_keys_that_differ_by_case() -> None:
    _, taken, _ = case("in_key_case.jsonl")
    assert list(taken) == ["k1", "k2", "k3"]
    assert taken["k1"].messages[0].role == "user"


def test_side_columns_do_no_harm() -> None:
    assert case("in_mixed_timestamps.jsonl")[0].accepted == 3


def test_only_line_feeds_end_lines() -> None:
    _, taken, _ = case("in_line_separators.jsonl")
    assert len(taken) == 3
    text = "".join("".join(texts(c)) for c in taken.values())
    assert all(mark in text for mark in "\u2028\u2029\u0085\v\f\r")


def test_an_array_with_a_trailing_comma_gives_nothing() -> None:
    ingestion, taken, rejected = case("in_trailing_comma.json")
    assert (ingestion.accepted, taken, rejected) == (0, {}, [])
    error = ingestion.sources[0].error
    assert error is not None
    assert "in_trailing_comma.json byte 184" in error
    assert (CASES / "in_trailing_comma.json").stat().st_size == 186


def test_content_in_parts() -> None:
    _, taken, rejected = case("in_content_parts.jsonl")
    assert list(taken) == ["p1", "p2", "p4", "p5"]
    assert texts(taken["p2"])[0] == "two parts"
    assert refused(rejected) == [("p3", "unsupported_content", 3)]
    assert taken["p4"].messages[-1].tool_calls == (
        '[{"id":"1","type":"function","function":{"name":"f","arguments":"{\\"time\\":\\"2025-08-01\\"}"}}]'
    )
    assert '"arguments":{"time":1690876800}' in (taken["p5"].messages[-1].tool_calls or "")


def test_a_torn_tail() -> None:
    _, taken, rejected = case("in_torn_tail.jsonl")
    assert list(taken) == ["c0", "c1", "c2", "c3"]
    assert refused(rejected) == [(None, "malformed_json", 5)]
    data = (CASES / "in_torn_tail.jsonl").read_bytes()
    assert data[rejected[0].byte_offset :].decode() == rejected[0].excerpt


def test_duplicate_ids() -> None:
    ingestion, taken, rejected = case("in_duplicate_ids.jsonl")
    assert list(taken) == ["x", "y", "z"]
    assert texts(taken["y"])[-1] == "first version"
    assert ingestion.exact_duplicates == 1
    assert refused(rejected) == [("y", "duplicate_id_conflict", 4)]


def test_a_huge_row_within_the_limit(tmp_path: Path) -> None:
    _, taken, _ = take(generated("in_huge_row", tmp_path))
    assert sorted(taken) == ["big", "s1", "s2", "s3"]
    assert len(texts(taken["big"])[-1]) == 20 * MIB


def test_a_huge_row_above_the_limit_is_not_held_in_memory(tmp_path: Path) -> None:
    path = generated("in_huge_row", tmp_path)
    tracemalloc.start()
    _, taken, rejected = take(path, max_row_bytes=MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(taken) == ["s1", "s2", "s3"]
    assert refused(rejected) == [(None, "row_too_large", 2)]
    assert peak < 8 * MIB


def test_sharegpt() -> None:
    _, taken, rejected = case("in_sharegpt.jsonl")
    assert [[m.role for m in c.messages] for c in taken.values()] == [
        ["system", "user", "assistant"],
        ["user", "user", "assistant"],
    ]
    assert refused(rejected) == [
        ("g2", "starts_with_assistant", 2),
        ("g4", "no_assistant", 4),
        ("g5", "empty_assistant", 5),
        ("g6", "no_messages", 6),
        ("g7", "bad_role", 7),
    ]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_bad_lines_cost_no_good_ones(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_bytes((CASES / "in_malformed_24.jsonl").read_bytes().replace(b"\n", ending.encode()))
    ingestion, taken, rejected = take(path)
    assert sorted(taken) == sorted(f"ok{n}" for n in range(25))
    assert [row.line for row in rejected] == list(range(2, 49, 2))
    assert len(ingestion.by_reason) >= 8
    data = path.read_bytes()
    for row in rejected:
        assert data[row.byte_offset :].split(b"\n")[0].rstrip(b"\r").decode() == row.excerpt
