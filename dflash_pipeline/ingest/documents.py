"""Raw text: a document a line, or a file that is one document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from dflash_pipeline.contracts.conversation import Reason
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BLANK, BOM, BadRow, RawRow, Row, bad_row, excerpt, split_lines, without_end


def read_text_lines(file: BinaryIO, limits: Limits) -> Iterator[Row | BadRow]:
    """Each line that is not blank as a row with `text`, without its line end."""
    for line in split_lines(file, max_row_bytes=limits.row_bytes):
        if isinstance(line, BadRow):
            yield line
        elif line.raw.strip(BLANK):
            yield _text_row(line.line, line.byte_offset, without_end(line.raw))


def read_document(file: BinaryIO, limits: Limits) -> Iterator[Row | BadRow]:
    """The whole file as one row with `text`, byte for byte; none if it is empty."""
    data = file.read(limits.row_bytes + len(BOM) + 1)
    text = data.removeprefix(BOM)
    if len(text) > limits.row_bytes:
        yield _bad(text, "row_too_large")
    elif text.strip(BLANK):
        yield _text_row(1, len(data) - len(text), text)


def _text_row(line: int, byte_offset: int, raw: bytes) -> Row | BadRow:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return bad_row(RawRow(line=line, byte_offset=byte_offset, raw=raw), "invalid_utf8")
    return Row(line=line, byte_offset=byte_offset, value={"text": text}, excerpt=excerpt(raw))


def _bad(raw: bytes, reason: Reason) -> BadRow:
    return bad_row(RawRow(line=1, byte_offset=0, raw=raw), reason)
