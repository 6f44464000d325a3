"""Rows of a Parquet file, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BadRow, Row
from dflash_pipeline.ingest.unpack import FileUnreadable

MAGIC = b"PAR1"
_ROWS_AT_ONCE = 64
_EXCERPT = 160
_CELL_EXCERPT = 60
_HARMLESS = 16 * 2**20


def read_parquet(source: Path | BinaryIO, *, name: str, size: int, limits: Limits) -> Iterator[Row | BadRow]:
    """Each row as an object; `size` is that of the file on disk, which the limits go by.

    Nulls are left out: a struct has no other way to say that it lacks a key.

    Raises `FileUnreadable` where the file is damaged or unpacks to more than the limits, as late as that is met.
    """
    try:
        with pq.ParquetFile(source) as file:
            yield from _rows(file, name, limits, packed=size)
    # pyarrow tells damage by OSError as well as by errors of its own.
    except (OSError, pa.ArrowException) as error:
        raise FileUnreadable(
            f"damaged: {str(error).splitlines()[0]}", where=name, fix="replace the file; none of its rows is kept"
        ) from error


def _rows(file: pq.ParquetFile, name: str, limits: Limits, *, packed: int) -> Iterator[Row | BadRow]:
    most = min(limits.unpacked_bytes, max(_HARMLESS, int(packed * limits.unpacked_ratio)))
    number = given = 0
    for group in range(file.num_row_groups):
        offset = _first_byte(file.metadata.row_group(group))
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], use_threads=False):
            given += batch.nbytes
            if given > most:
                raise FileUnreadable(
                    f"it unpacks to more than {most} bytes",
                    where=name,
                    fix="raise data.max_unpacked_bytes and data.max_unpacked_ratio if you trust the file",
                )
            sizes = _row_sizes(batch)
            for at in range(batch.num_rows):
                number += 1
                yield _row(batch.slice(at, 1), number, offset, too_large=sizes[at] > limits.row_bytes)


def _first_byte(group: pq.RowGroupMetaData) -> int:
    if not group.num_columns:
        return 0
    column = group.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _row_sizes(batch: pa.RecordBatch) -> list[int]:
    if batch.nbytes == 0:
        return [0] * batch.num_rows
    return [batch.slice(at, 1).nbytes for at in range(batch.num_rows)]


def _row(row: pa.RecordBatch, number: int, offset: int, *, too_large: bool) -> Row | BadRow:
    if too_large:
        return BadRow(line=number, byte_offset=offset, reason="row_too_large", excerpt="")
    try:
        [value] = row.to_pylist()
    except UnicodeDecodeError:
        return BadRow(line=number, byte_offset=offset, reason="invalid_utf8", excerpt="")
    plain = {key: _plain(cell) for key, cell in value.items() if cell is not None}
    return Row(line=number, byte_offset=offset, value=plain, excerpt=_excerpt(plain))


def _plain(value: Any) -> Any:
    """The value in JSON's types. Dates, decimals and bytes, which no text field can hold, become their Python text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return repr(value)


def _excerpt(row: dict[str, Any]) -> str:
    cells = (
        f"{key}: {value[:_CELL_EXCERPT] if isinstance(value, str) else str(value)[:_CELL_EXCERPT]}"
        for key, value in row.items()
    )
    return "; ".join(cells)[:_EXCERPT]
