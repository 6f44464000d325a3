"""Lines of a source file to JSON objects, strictly: a row is one object or a named reason, never a guess.

DuckDB and pandas guess types and drop text, so rows are read here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from dflash_pipeline.contracts.conversation import Reason
from dflash_pipeline.ingest.limits import Limits

MAX_DEPTH = 64
MAX_DIGITS = 1000
"""Of one whole number: Python itself stops at 4300, and no id or argument needs more."""
BOM = b"\xef\xbb\xbf"
BLANK = b" \t\r\n"
_BLANK_TEXT = BLANK.decode()
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
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
    """One object and where it lies."""

    line: int
    byte_offset: int
    value: dict[str, Any]
    excerpt: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRow:
    """A row's bytes and where they lie."""

    line: int
    byte_offset: int
    raw: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row that cannot be read, and where it lies."""

    line: int
    byte_offset: int
    reason: Reason
    excerpt: str


def read_lines(file: BinaryIO, limits: Limits) -> Iterator[Row | BadRow]:
    """One JSON row a line. Blank lines hold no row but are counted as lines."""
    for line in split_lines(file, max_row_bytes=limits.row_bytes):
        if isinstance(line, BadRow):
            yield line
        elif line.raw.strip(BLANK):
            yield row_of(line, max_depth=limits.depth)


def split_lines(file: BinaryIO, *, max_row_bytes: int) -> Iterator[RawRow | BadRow]:
    """Every line with its end, from the start of `file`. Only LF ends a line; a CR before it belongs to the end.

    A line above `max_row_bytes` (its end aside) is passed over in pieces, so memory follows the cap and not the line.
    """
    offset = line = 0
    room = len(BOM)
    while chunk := file.readline(max_row_bytes + 2 + room):  # 2 for CR and LF
        if room and chunk.startswith(BOM):
            chunk, offset = chunk[room:], room
        line += 1
        length = len(chunk)
        if not chunk.endswith(b"\n") and length >= max_row_bytes + 2:
            length += _pass_over_line(file)
        if len(without_end(chunk)) > max_row_bytes:
            yield BadRow(line=line, byte_offset=offset, reason="row_too_large", excerpt=excerpt(chunk))
        else:
            yield RawRow(line=line, byte_offset=offset, raw=chunk)
        offset += length
        room = 0


def without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def row_of(raw: RawRow, *, max_depth: int) -> Row | BadRow:
    """The bytes as one JSON object."""
    try:
        value = decode_object(without_end(raw.raw), max_depth=max_depth)
    except RowError as fault:
        return bad_row(raw, fault.reason)
    return Row(line=raw.line, byte_offset=raw.byte_offset, value=value, excerpt=excerpt(raw.raw))


def bad_row(raw: RawRow, reason: Reason) -> BadRow:
    return BadRow(line=raw.line, byte_offset=raw.byte_offset, reason=reason, excerpt=excerpt(raw.raw))


def decode_object(raw: bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The object that `raw` is in strict JSON, or a `RowError`."""
    value = decode_value(raw, max_depth=max_depth)
    if not isinstance(value, dict):
        raise RowError("not_an_object")
    return value


def decode_value(raw: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """What `raw` is in strict JSON, or a `RowError`."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise RowError("invalid_utf8") from None
    if _deeper(raw, max_depth):
        raise RowError("too_deep")
    text = text.strip(_BLANK_TEXT)
    try:
        # `decode` does the same in twice the time.
        value, end = _SCAN(text, 0)
    except (ValueError, StopIteration):
        raise RowError("malformed_json") from None
    if end != len(text):
        raise RowError("malformed_json")
    if _SURROGATE.search(text) and _has_lone_surrogate(value):
        raise RowError("lone_surrogate")
    return value


def _pass_over_line(file: BinaryIO) -> int:
    passed = 0
    while piece := file.readline(_SKIP):
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
    return passed


def _deeper(raw: bytes, max_depth: int) -> bool:
    if raw.count(b"[") + raw.count(b"{") <= max_depth:
        return False  # cannot be, and counting is far cheaper than looking
    depth = 0
    for token in _TOKEN.finditer(raw):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth > max_depth:
                return True
        elif token[0] in (b"]", b"}"):
            depth -= 1
    return False


def excerpt(raw: bytes) -> str:
    """The row's first characters, for a person."""
    return without_end(raw[: 4 * _EXCERPT]).decode("utf-8", errors="replace")[:_EXCERPT]


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
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]
