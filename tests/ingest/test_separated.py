"""CSV and TSV: cells are text, and a bad record costs no good one."""

from __future__ import annotations

import csv
from io import BytesIO, StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BadRow, Row
from dflash_pipeline.ingest.separated import read_separated
from dflash_pipeline.ingest.unpack import FileUnreadable

CELLS = st.text(st.sampled_from('ab ",\t\n\r;é\u2028'), max_size=8) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6
)


def read(text: str | bytes, *, delimiter: str = ",", row_bytes: int = 10_000) -> list[Row | BadRow]:
    data = text if isinstance(text, bytes) else text.encode()
    limits = Limits(row_bytes=row_bytes)
    return list(read_separated(BytesIO(data), delimiter=delimiter, name="rows.csv", limits=limits))


def outcome(rows: list[Row | BadRow]) -> list[object]:
    return [row.value if isinstance(row, Row) else (row.line, row.reason) for row in rows]


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=6),
    delimiter=st.sampled_from([",", "\t"]),
    ending=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(),
)
def test_cells_come_back_character_for_character(
    rows: list[tuple[str, str]], delimiter: str, ending: str, bom: bool
) -> None:
    written = StringIO()
    writer = csv.writer(written, delimiter=delimiter, lineterminator=ending, quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "text"), *rows])
    data = ("\ufeff" if bom else "") + written.getvalue()
    found = read(data, delimiter=delimiter)
    assert outcome(found) == [{"id": one, "text": other} for one, other in rows]
    raw = data.encode()
    for row in found:
        assert raw[: row.byte_offset].count(b"\n") == row.line - 1
        assert raw[row.byte_offset - 1 : row.byte_offset] == b"\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n\n3,4", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        (
            'a,b\n1\n2,3,4\n5,"6"\n',
            [(2, "wrong_number_of_fields"), (3, "wrong_number_of_fields"), {"a": "5", "b": "6"}],
        ),
        ('a,b\n1,"x"y\n2,ok\n', [(2, "malformed_csv"), {"a": "2", "b": "ok"}]),
        # A quote that is never closed must not swallow what follows it.
        ('a,b\n1,"open\n2,ok\n3,ok\n', [(2, "malformed_csv"), {"a": "2", "b": "ok"}, {"a": "3", "b": "ok"}]),
        (
            'a,b\n1,"open\n2,ok\n3,"two\nlines"\n4,ok',
            [(2, "malformed_csv"), {"a": "2", "b": "ok"}, {"a": "3", "b": "two\nlines"}, {"a": "4", "b": "ok"}],
        ),
        ('a,b\n5" disk,x\n6" disk,y\n', [{"a": '5" disk', "b": "x"}, {"a": '6" disk', "b": "y"}]),
    ],
)
def test_a_bad_record_costs_no_good_one(text: str, expected: list[object]) -> None:
    assert outcome(read(text)) == expected


def test_bytes_that_are_no_text_cost_their_own_line() -> None:
    found = outcome(read(b'a,b\n1,\xff\n2,ok\n"x\n\xff",3\n4,ok\n'))
    assert found[:2] == [(2, "invalid_utf8"), {"a": "2", "b": "ok"}]
    assert found[-1] == {"a": "4", "b": "ok"}


def test_records_above_the_cap() -> None:
    text = "a,b\n1," + "x" * 100 + '\n2,"' + "y\n" * 60 + '"\n3,ok\n'
    found = outcome(read(text, row_bytes=50))
    assert found[0] == (2, "row_too_large")
    assert found[-1] == {"a": "3", "b": "ok"}
    assert all(isinstance(row, tuple) for row in found[:-1])


def test_hostile_quotes_cost_linear_time() -> None:
    # Each line opens a cell also when it is read from inside one: read again and again, this would take days.
    lines = 30_000
    found = read("a,b\n" + '5","\n' * lines + '"x"y\n', row_bytes=2**30)
    assert len(found) == lines + 1
    assert {row.reason for row in found if isinstance(row, BadRow)} == {"malformed_csv"}


@pytest.mark.parametrize("text", ["a,a\n1,2\n", "a,\n1,2\n", '"a\n1,2\n', b"\xff,b\n1,2\n"])
def test_a_header_that_names_no_columns(text: str | bytes) -> None:
    with pytest.raises(FileUnreadable, match="header"):
        read(text)


@pytest.mark.parametrize("text", ["", "\n\n", "a,b", "a,b\n"])
def test_no_rows(text: str) -> None:
    assert read(text) == []
