"""One JSON array, read piece by piece: the same rows wherever the pieces end."""

from __future__ import annotations

import json
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.ingest import arrays
from dflash_pipeline.ingest.arrays import read_array
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BadRow, Row
from dflash_pipeline.ingest.unpack import FileUnreadable

TEXT = st.text(st.sampled_from('a"\\[]{},\n é😀'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(TEXT, VALUES, max_size=3), max_size=5)


def read(data: bytes, piece: int, *, row_bytes: int = 10_000) -> list[Row | BadRow]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_PIECE", piece)
        return list(read_array(BytesIO(data), name="rows.json", limits=Limits(row_bytes=row_bytes)))


@settings(deadline=None)
@given(rows=ROWS, piece=st.integers(1, 9), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_rows_are_the_elements_wherever_the_pieces_end(
    rows: list[dict[str, object]], piece: int, indent: int | None, ascii_only: bool
) -> None:
    data = b" " + json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode() + b"\n"
    # The bracket that opens the array has to lie in the first piece.
    found = read(data, max(piece, 2))
    assert [row.value for row in found if isinstance(row, Row)] == rows
    assert [row.line for row in found] == list(range(1, len(rows) + 1))
    assert all(data[row.byte_offset : row.byte_offset + 1] == b"{" for row in found)
    assert found == read(data, 2**20)


@settings(deadline=None)
@given(rows=ROWS.filter(bool), cut=st.integers(1, 400), piece=st.integers(2, 9))
def test_an_array_that_is_cut_is_refused_wherever_the_pieces_end(
    rows: list[dict[str, object]], cut: int, piece: int
) -> None:
    data = json.dumps(rows).encode()
    torn = data[: max(1, len(data) - cut)]
    messages = []
    for size in (piece, 2**20):
        with pytest.raises(FileUnreadable) as refusal:
            read(torn, size)
        messages.append(str(refusal.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("piece", [2, 7, 2**20])
def test_a_row_above_the_cap_is_passed_over(piece: int) -> None:
    large = '{"a": "' + 'x\\"[,' * 2000 + '"}'
    data = f'[{{"n": 1}}, {large}, {{"n": 2}}]'.encode()
    rows = read(data, piece, row_bytes=50)
    assert [row.value if isinstance(row, Row) else row.reason for row in rows] == [
        {"n": 1},
        "row_too_large",
        {"n": 2},
    ]
    assert data[rows[2].byte_offset :].startswith(b'{"n": 2')


@pytest.mark.parametrize("data", [b"", b"  ", b'{"a":1}', b"[", b'["', b'["\\'])
def test_what_is_no_array(data: bytes) -> None:
    with pytest.raises(FileUnreadable):
        read(data, 2**20)
