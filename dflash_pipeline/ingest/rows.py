"""Bytes of a source file to JSON objects, strictly: a row is one object or a named reason, never a guess.

DuckDB and pandas guess types and drop text, so rows are read here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from dflash_pipeline.contracts.conversation import Reason
from dflash_pipeline.contracts.errors import Refused

MAX_DEPTH = 64
MAX_DIGITS = 1000
"""Of one whole number: Python itself stops at 4300, and no id or argument needs more."""
MAX_ARRAY_BYTES = 2**30
"""An array is held in memory as a whole; lines have no such limit."""

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_EXCERPT = 160
_SKIP = 2**20
# A string (also one that never ends), or a mark that stands outside strings. Possessive, so linear on hostile input.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)


class RowError(Exception):
    """Why one row cannot be taken; caught where the row is counted, and never costs another row."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One JSON object and where it lies."""

    line: int
    byte_offset: int
    value: dict[str, Any]
    excerpt: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row that is not one JSON object, and where it lies."""

    line: int
    byte_offset: int
    reason: Reason
    excerpt: str


def read_lines(file: BinaryIO, *, max_row_bytes: int) -> Iterator[Row | BadRow]:
    """One row a line, from the start of `file`. Only LF ends a line; blank lines hold no row but are counted as lines.

    A line above `max_row_bytes` (its end aside) is passed over in pieces, so memory follows the cap and not the line.
    """
    file.seek(0)
    offset = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    file.seek(offset)
    line = 0
    while chunk := file.readline(max_row_bytes + 2):  # room for CR and LF
        line += 1
        raw = chunk.removesuffix(b"\n").removesuffix(b"\r")
        length = len(chunk)
        if not chunk.endswith(b"\n") and length == max_row_bytes + 2:
            length += _pass_over_line(file)
        if len(raw) > max_row_bytes:
            yield BadRow(line=line, byte_offset=offset, reason="row_too_large", excerpt=_excerpt(raw))
        elif raw.strip(_BLANK):
            yield _row(raw, line=line, byte_offset=offset)
        offset += length


def is_array(file: BinaryIO) -> bool:
    """Whether the first character that counts is `[`."""
    file.seek(0)
    head = file.read(_SKIP).removeprefix(_BOM).lstrip(_BLANK)
    return head.startswith(b"[")


def read_array(file: BinaryIO, *, name: str, max_row_bytes: int) -> list[Row | BadRow]:
    """The rows of a file that is one JSON array, all or none: text that is not JSON refuses the file.

    A row that is JSON but not acceptable (a repeated key, too deep, …) costs only itself.
    """
    file.seek(0)
    data = file.read(MAX_ARRAY_BYTES + 1)
    if len(data) > MAX_ARRAY_BYTES:
        raise Refused(
            f"an array of more than {MAX_ARRAY_BYTES} bytes", where=name, fix="write it as .jsonl, one object a line"
        )
    rows: list[Row | BadRow] = []
    for begin, end in _elements(data, name):
        raw = data[begin:end].strip(_BLANK)
        at = end - len(data[begin:end].lstrip(_BLANK))
        if len(raw) > max_row_bytes:
            row: Row | BadRow = BadRow(
                line=len(rows) + 1, byte_offset=at, reason="row_too_large", excerpt=_excerpt(raw)
            )
        else:
            row = _row(raw, line=len(rows) + 1, byte_offset=at)
        if isinstance(row, BadRow) and row.reason in ("malformed_json", "invalid_utf8"):
            _refuse_array(name, at, f"row {row.line} is {row.reason}: {row.excerpt!r}")
        rows.append(row)
    return rows


def decode_object(raw: bytes) -> dict[str, Any]:
    """The object that `raw` is in strict JSON, or a `RowError`."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise RowError("invalid_utf8") from None
    if _depth(raw) > MAX_DEPTH:
        raise RowError("too_deep")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError:
        raise RowError("malformed_json") from None
    if "\\u" in text and _has_lone_surrogate(value):
        raise RowError("lone_surrogate")
    if not isinstance(value, dict):
        raise RowError("not_an_object")
    return value


def _row(raw: bytes, *, line: int, byte_offset: int) -> Row | BadRow:
    try:
        value = decode_object(raw)
    except RowError as fault:
        return BadRow(line=line, byte_offset=byte_offset, reason=fault.reason, excerpt=_excerpt(raw))
    return Row(line=line, byte_offset=byte_offset, value=value, excerpt=_excerpt(raw))


def _pass_over_line(file: BinaryIO) -> int:
    passed = 0
    while piece := file.readline(_SKIP):
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
    return passed


def _elements(data: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Where the elements of the array lie, found by its brackets and commas without parsing them."""
    begin = data.index(b"[") + 1
    empty = True
    depth = 1
    for token in _TOKEN.finditer(data, begin):
        mark = token[0]
        empty = empty and not data[begin : token.start()].strip(_BLANK) and mark == b"]"
        if mark in (b"[", b"{"):
            depth += 1
        elif mark in (b"]", b"}"):
            depth -= 1
        if depth == 0 or (depth == 1 and mark == b","):
            if not empty:
                yield begin, token.start()
            begin = token.end()
        if depth == 0:
            break
    if depth or data[begin - 1 : begin] != b"]":
        _refuse_array(name, len(data) if depth else begin - 1, "the array is not closed")
    if data[begin:].strip(_BLANK):
        _refuse_array(name, begin, "text follows the array")


def _refuse_array(name: str, at: int, what: str) -> NoReturn:
    raise Refused(
        f"not a JSON array, {what}", where=f"{name} byte {at}", fix="correct the file; none of its rows is kept"
    )


def _depth(raw: bytes) -> int:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return 0  # cannot be too deep, and counting is far cheaper than looking
    depth = deepest = 0
    for token in _TOKEN.finditer(raw):
        if token[0] in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in (b"]", b"}"):
            depth -= 1
    return deepest


def _excerpt(raw: bytes) -> str:
    return raw[: 4 * _EXCERPT].decode("utf-8", errors="replace")[:_EXCERPT]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise RowError("duplicate_key")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise RowError("number_out_of_range")
    return value


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise RowError("number_out_of_range")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise RowError("non_finite_number")


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_float=_finite, parse_int=_whole, parse_constant=_no_constant
)
