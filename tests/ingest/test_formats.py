"""Which format a file has is told by its content; each gives the same rows, packed or not."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.formats import detect_format, read_rows
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BadRow, Row
from dflash_pipeline.ingest.sources import SourceFile
from dflash_pipeline.ingest.unpack import FileUnreadable
from dflash_pipeline.recipe import Format
from tests.ingest.taking import take

ROWS = [{"id": str(n), "question": f"q{n} é\u2028", "answer": f'say "{n}",\nthen go'} for n in range(5)]


def as_csv(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROWS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def as_parquet(rows: list[dict[str, object]] = ROWS) -> bytes:  # type: ignore[assignment]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=2)
    return out.getvalue()


LINES = "\n".join(map(json.dumps, ROWS)).encode()
CONTENTS: dict[str, tuple[Format, bytes]] = {
    "rows.jsonl": ("jsonl", LINES),
    "lines_by_another.json": ("jsonl", LINES),
    "lines": ("jsonl", b"\xef\xbb\xbf \n" + LINES),
    "rows.json": ("json", json.dumps(ROWS, indent=2).encode()),
    "array_by_another.jsonl": ("json", json.dumps(ROWS).encode()),
    "rows.csv": ("csv", as_csv(",")),
    "rows.TSV": ("tsv", as_csv("\t")),
    "rows.parquet": ("parquet", as_parquet()),
    "parquet_by_another.jsonl": ("parquet", as_parquet()),
}
PACKINGS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("named", [True, False])
def test_every_format_gives_the_same_conversations(tmp_path: Path, name: str, packing: str, named: bool) -> None:
    expected, content = CONTENTS[name]
    path = tmp_path / (name + (packing if named else ""))
    path.write_bytes(PACKINGS[packing](content))
    assert detect_format(path, name=name, limits=Limits()) == expected
    _, conversations, rejected = take(path)
    assert rejected == []
    assert [(c.conversation_id, *(m.content for m in c.messages)) for c in conversations] == [
        (row["id"], row["question"], row["answer"]) for row in ROWS
    ]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"[not json]\nnor this", "lines"),
        ("a.md", b"{title}\n\ntext", "document"),
        ("a.jsonl", b"[1,2]\n{}\n", "jsonl"),
        ("a.jsonl", b"not json", "jsonl"),
        ("a.jsonl", b"", "jsonl"),
        ("a.json", b"[1,2]\n{}\n", "json"),
        ("a", b"  [", "json"),
    ],
)
def test_detection(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert detect_format(path, name=name, limits=Limits()) == expected


@pytest.mark.parametrize("content", [b"", b"some words", b"\x89PNG\r\n", b"PK\x03\x04"])
def test_what_is_not_known_is_not_guessed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.data"
    path.write_bytes(content)
    with pytest.raises(Refused, match="not a known format"):
        detect_format(path, name="rows.data", limits=Limits())


def test_text_is_a_document_a_line_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufefffirst \r\n\n \nsecond\u0085line\n".encode())
    _, conversations, _ = take(path)
    assert [(c.line, c.document) for c in sorted(conversations, key=lambda c: c.line)] == [
        (1, "first "),
        (4, "second\u0085line"),
    ]
    _, conversations, _ = take(SourceFile(path=path, format="document"))
    assert [c.document for c in conversations] == ["first \r\n\n \nsecond\u0085line\n"]


def test_parquet_keeps_nested_rows_and_leaves_out_what_is_null(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = [
        {
            "id": 7,
            "when": None,
            "messages": [
                {"role": "user", "content": "q", "tool_calls": None},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "1", "tool_calls": None},
            ],
        },
        {"id": None, "when": None, "messages": []},
    ]
    path = tmp_path / "a.parquet"
    path.write_bytes(as_parquet(rows))  # type: ignore[arg-type]
    _, [conversation], [rejected] = take(path)
    assert conversation.conversation_id == "7"
    calls = conversation.messages[1].tool_calls
    assert calls is not None
    assert json.loads(calls) == [call]  # pyarrow below 21 sorts the names of a struct it is given.
    assert (rejected.line, rejected.reason) == (2, "no_messages")


def test_parquet_text_that_is_no_text_costs_its_own_row(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array([0, 4, 5, 8], pa.int32()).buffers()[1], pa.py_buffer(b"fine\xfftoo")]
    )
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": bad}), path)
    rows = list(read_rows(path, "parquet", name="a", limits=Limits()))
    assert [row.value["text"] if isinstance(row, Row) else row.reason for row in rows] == [
        "fine",
        "invalid_utf8",
        "too",
    ]


def test_parquet_rows_above_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b" * 1000, "c"]}), path)
    rows = list(read_rows(path, "parquet", name="a", limits=Limits(row_bytes=500)))
    assert [row.reason if isinstance(row, BadRow) else row.value["text"] for row in rows] == ["a", "row_too_large", "c"]


@pytest.mark.parametrize("cut", [10, 300, 8])
def test_a_damaged_parquet_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(as_parquet()[:-cut])
    with pytest.raises(FileUnreadable, match="damaged"):
        list(read_rows(path, "parquet", name="a", limits=Limits()))
