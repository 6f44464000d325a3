from __future__ import annotations

import json
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.arrays import read_array
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import MAX_DEPTH, BadRow, Row, RowError, decode_object, read_lines

JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FINITE | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(JSON_TEXT, VALUES, max_size=4)
BAD_LINES = {
    b"{": "malformed_json",
    b"\xff{}": "invalid_utf8",
    b'{"a":1,"\\u0061":2}': "duplicate_key",
    b'{"a":-Infinity}': "non_finite_number",
    b"7": "not_an_object",
}


def lines(data: bytes, *, max_row_bytes: int = 1000) -> list[Row | BadRow]:
    return list(read_lines(BytesIO(data), Limits(row_bytes=max_row_bytes)))


def array(data: bytes, *, max_row_bytes: int = 1000) -> list[Row | BadRow]:
    return list(read_array(BytesIO(data), name="rows.json", limits=Limits(row_bytes=max_row_bytes)))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{'a':1}", "malformed_json"),
        (b'{"a":1,}', "malformed_json"),
        (b'{"a":1} x', "malformed_json"),
        (b'{"a":"tab\there"}', "malformed_json"),
        (b"\xef\xbb\xbf{}", "malformed_json"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_utf8"),
        (b'{"a":"\xc0\xaf"}', "invalid_utf8"),
        (b'{"x":{"a":1,"a":1}}', "duplicate_key"),
        (b'{"a":NaN}', "non_finite_number"),
        (b'{"a":1e400}', "number_out_of_range"),
        (b'{"a":' + b"9" * 5000 + b"}", "number_out_of_range"),
        (b'{"a":"\\ud800"}', "lone_surrogate"),
        (b'{"\\udfff":1}', "lone_surrogate"),
        (b'"text"', "not_an_object"),
        (b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "too_deep"),
        (b'{"a":' * 100_000, "too_deep"),
    ],
)
def test_strict_json(raw: bytes, reason: str) -> None:
    with pytest.raises(RowError, match=f"^{reason}$"):
        decode_object(raw)


def test_what_strict_json_allows() -> None:
    assert decode_object(b' {"a":"\\ud83d\\ude00", "n":12345678901234567890123} ') == {
        "a": "\U0001f600",
        "n": 12345678901234567890123,
    }
    nested = decode_object(b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}")
    assert list(nested) == ["a"]
    brackets = "[{" * 500 + '\\"'
    assert decode_object(json.dumps({"a": brackets}).encode()) == {"a": brackets}


def test_depth_is_found_in_linear_time() -> None:
    hostile = b'{"a":"' + b'\\"[{' * 200_000  # a string that never ends, full of escaped quotes
    with pytest.raises(RowError, match="malformed_json"):
        decode_object(hostile)


@given(
    rows=st.lists(OBJECTS | st.sampled_from(sorted(BAD_LINES)), max_size=8),
    ending=st.sampled_from([b"\n", b"\r\n", b"\n \n"]),
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    last=st.booleans(),
)
def test_every_line_is_a_row_or_a_reason_and_is_found_again(
    rows: list[dict[str, object] | bytes], ending: bytes, bom: bytes, last: bool
) -> None:
    raws = [row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows]
    data = bom + ending.join(raws) + (ending if last else b"")
    found = lines(data, max_row_bytes=10_000)
    assert len(found) == len(rows)
    for number, (row, raw, got) in enumerate(zip(rows, raws, found, strict=True)):
        assert got.line == 1 + number * ending.count(b"\n")
        assert data[got.byte_offset : got.byte_offset + len(raw)] == raw
        if isinstance(row, bytes):
            assert isinstance(got, BadRow)
            assert got.reason == BAD_LINES[row]
        else:
            assert isinstance(got, Row)
            assert got.value == row


@given(rows=st.lists(OBJECTS, max_size=6), indent=st.sampled_from([None, 2]), bom=st.booleans())
def test_an_array_gives_what_its_elements_are(rows: list[dict[str, object]], indent: int | None, bom: bool) -> None:
    data = (b"\xef\xbb\xbf" if bom else b"") + json.dumps(rows, indent=indent, ensure_ascii=False).encode()
    found = array(data, max_row_bytes=10_000)
    assert [row.value for row in found if isinstance(row, Row)] == rows
    assert [row.line for row in found] == [n + 1 for n in range(len(rows))]
    assert all(data[row.byte_offset : row.byte_offset + 1] == b"{" for row in found)


@pytest.mark.parametrize(
    ("data", "byte"),
    [
        (b'[{"a":1},]', 9),
        (b'[{"a":1},,{"a":2}]', 9),
        (b'[{"a":1} {"a":2}]', 1),
        (b'[{"a":1}', 8),
        (b'[{"a":1}}', 8),
        (b'[{"a":1}] x', 9),
        (b'[{"a":"\xff"}]', 1),
        (b'[{"a":"no end}]', 15),
    ],
)
def test_a_broken_array_is_refused_as_a_whole(data: bytes, byte: int) -> None:
    with pytest.raises(Refused) as refusal:
        array(data)
    assert refusal.value.where == f"rows.json byte {byte}"


def test_a_bad_row_of_an_array_costs_only_itself() -> None:
    found = array(b'[{"a":1},[2],{"b":1,"b":2},{"c":"' + b"x" * 100 + b'"}]', max_row_bytes=50)
    assert [row.reason if isinstance(row, BadRow) else row.value for row in found] == [
        {"a": 1},
        "not_an_object",
        "duplicate_key",
        "row_too_large",
    ]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize(("size", "fits"), [(49, True), (50, True), (51, False), (52, False), (53, False), (99, False)])
def test_the_cap_is_on_the_row_without_its_end(ending: bytes, size: int, fits: bool) -> None:
    raw = b'{"a":"' + b"x" * (size - 8) + b'"}'
    found = lines(raw + ending + b'\n{"b":1}\n' * bool(ending), max_row_bytes=50)
    assert isinstance(found[0], Row) == fits
    if ending:
        assert isinstance(found[1], Row)
        assert (found[1].line, found[1].byte_offset) == (3, size + len(ending) + 1)
