"""Rows of CSV and TSV files: every cell is text, under the name that the first line gives its column."""

from __future__ import annotations

import csv
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from dflash_pipeline.contracts.conversation import Reason
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BadRow, RawRow, Row, bad_row, excerpt, split_lines
from dflash_pipeline.ingest.unpack import FileUnreadable

# The cap on a row is ours, and is looked at before: the module's own, of 128 KiB, would cost good rows.
csv.field_size_limit(sys.maxsize)


def read_separated(file: BinaryIO, *, delimiter: str, name: str, limits: Limits) -> Iterator[Row | BadRow]:
    """One row a record below the header. Line ends inside quotes belong to the cell; `line` is the record's first.

    A quote that is never closed costs its own line alone. Raises `FileUnreadable` for a header that names no columns.
    """
    records = _Records(file, delimiter=delimiter, max_row_bytes=limits.row_bytes)
    header = _header(next(records, None), name)
    for record in records:
        if isinstance(record, BadRow):
            yield record
        elif len(record.cells) != len(header):
            yield bad_row(record.first, "wrong_number_of_fields")
        else:
            yield Row(
                line=record.first.line,
                byte_offset=record.first.byte_offset,
                value=dict(zip(header, record.cells, strict=True)),
                excerpt=excerpt(record.first.raw),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Record:
    first: RawRow
    """Its first line."""
    cells: Sequence[str]


def _header(record: _Record | BadRow | None, name: str) -> Sequence[str]:
    if record is None:
        return ()
    if isinstance(record, BadRow):
        raise _no_header(name, f"the header is {record.reason}")
    if "" in record.cells or len(set(record.cells)) != len(record.cells):
        raise _no_header(name, f"the header is {record.first.raw[:200]!r}, with an empty or a repeated name")
    return record.cells


def _no_header(name: str, what: str) -> FileUnreadable:
    return FileUnreadable(what, where=name, fix="name every column once in the first line; none of its rows is kept")


class _Records:
    """Lines put together where a quoted cell goes on."""

    def __init__(self, file: BinaryIO, *, delimiter: str, max_row_bytes: int) -> None:
        self._lines = split_lines(file, max_row_bytes=max_row_bytes)
        self._again: deque[RawRow | BadRow] = deque()
        self._alone: deque[RawRow | BadRow] = deque()
        self._delimiter = delimiter
        self._cap = max_row_bytes

    def __iter__(self) -> Iterator[_Record | BadRow]:
        return self

    def __next__(self) -> _Record | BadRow:
        while True:
            alone = bool(self._alone)
            line = self._alone.popleft() if alone else self._next_line()
            if line is None:
                raise StopIteration
            if isinstance(line, BadRow):
                return line
            if not line.raw.strip():
                continue
            return self._record(line, alone=alone)

    def _next_line(self) -> RawRow | BadRow | None:
        return self._again.popleft() if self._again else next(self._lines, None)

    def _record(self, first: RawRow, *, alone: bool) -> _Record | BadRow:
        feed = _Feed(first, self, cap=0 if alone else self._cap)
        try:
            cells = next(csv.reader(feed, delimiter=self._delimiter, strict=True))
            return _Record(first=first, cells=cells)
        except UnicodeDecodeError:
            reason: Reason = "malformed_csv" if feed.taken[1:] else "invalid_utf8"
        except csv.Error:
            reason = "malformed_csv"
        # The lines between were taken for the inside of a cell, and stand for themselves. Only the line at which it
        # came out may begin a record of several lines: so no line is looked at more than a few times.
        others = feed.taken[1:]
        if others and not feed.ran_out:
            self._again.appendleft(others.pop())
        self._alone.extend(others)
        if feed.stopped_by is not None:
            self._again.appendleft(feed.stopped_by)
        return bad_row(first, reason)


class _Feed:
    """The lines a record is read from: its first, and more while a quote is open and the cap is not reached."""

    def __init__(self, first: RawRow, records: _Records, *, cap: int) -> None:
        self.taken = [first]
        self.ran_out = False
        self.stopped_by: BadRow | None = None
        self._records = records
        self._given = 0
        self._room = cap

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._given:
            self._take()
        line = self.taken[self._given]
        self._given += 1
        self._room -= len(line.raw)
        return line.raw.decode("utf-8")

    def _take(self) -> None:
        line = self._records._next_line() if self._room > 0 else None
        if isinstance(line, RawRow):
            self.taken.append(line)
            return
        self.ran_out, self.stopped_by = True, line
        raise StopIteration
