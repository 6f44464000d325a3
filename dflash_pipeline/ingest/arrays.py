"""The elements of one JSON array, read piece by piece: memory follows the largest row, not the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.rows import BLANK, BOM, BadRow, RawRow, Row, excerpt, row_of
from dflash_pipeline.ingest.unpack import FileUnreadable

_PIECE = 2**20
_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+(?:(?P<close>")|(?P<escape>\\?)\Z)'
# A string (also one that goes on in the next piece), or a mark that stands outside strings. Possessive, so linear.
_TOKEN = re.compile(rb'"' + _TEXT + rb"|[\[\]{},]", re.DOTALL)
_REST_OF_STRING = re.compile(_TEXT, re.DOTALL)


def read_array(file: BinaryIO, *, name: str, limits: Limits) -> Iterator[Row | BadRow]:
    """The rows of a file that is one JSON array, numbered from 1.

    A row that is JSON but not acceptable (a repeated key, too deep, too large, …) costs only itself. Text that is not
    JSON raises `FileUnreadable`, as late as it is met: what was given before must then be thrown away.
    """
    number = 0
    for piece in _elements(file, name, limits.row_bytes):
        number += 1
        raw = piece.data.strip(BLANK)
        at = piece.offset + len(piece.data) - len(piece.data.lstrip(BLANK))
        if piece.size > limits.row_bytes and len(raw) >= limits.row_bytes:
            yield BadRow(line=number, byte_offset=at, reason="row_too_large", excerpt=excerpt(raw))
            continue
        row = row_of(RawRow(line=number, byte_offset=at, raw=raw), max_depth=limits.depth)
        if isinstance(row, BadRow) and row.reason in ("malformed_json", "invalid_utf8"):
            raise _broken(name, at, f"row {row.line} is {row.reason}: {row.excerpt!r}")
        yield row


@dataclass(frozen=True, kw_only=True, slots=True)
class _Element:
    """One element with the blanks around it; `data` is only its beginning when `size` is above the cap."""

    offset: int
    size: int
    data: bytes


class _Scanner:
    """Where elements end, found by brackets and commas without parsing what is between them."""

    __slots__ = ("depth", "escaped", "in_string")

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = self.escaped = False

    def ends(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """Place and mark of each comma between elements, and of the bracket that closes the array, in this piece."""
        at = self._skip_string(piece)
        if self.in_string:
            return
        for token in _TOKEN.finditer(piece, at):
            mark = token[0]
            if mark in (b"[", b"{"):
                self.depth += 1
            elif mark in (b"]", b"}"):
                self.depth -= 1
                if self.depth == 0:
                    yield token.start(), mark
                    return
            elif mark == b",":
                if self.depth == 1:
                    yield token.start(), mark
            elif token["close"] is None:
                self.in_string, self.escaped = True, bool(token["escape"])

    def _skip_string(self, piece: bytes) -> int:
        if not self.in_string:
            return 0
        rest = _REST_OF_STRING.match(piece, int(self.escaped))
        if rest is None:  # an empty piece
            return 0
        self.in_string, self.escaped = rest["close"] is None, bool(rest["escape"])
        return rest.end()


def _elements(file: BinaryIO, name: str, max_row_bytes: int) -> Iterator[_Element]:
    scanner = _Scanner()
    offset, head = _opened(file, name)
    kept, size, begin, empty = bytearray(), 0, offset, True
    scanner.depth = 1
    room = max_row_bytes + _PIECE  # for blanks around a row

    piece = head
    while piece:
        start = 0
        for end, mark in scanner.ends(piece):
            kept += piece[start : start + max(0, min(end - start, room - len(kept)))]
            size += end - start
            if not (empty and mark == b"]" and not kept.strip(BLANK)):
                yield _Element(offset=begin, size=size, data=bytes(kept))
            start, empty = end + 1, False
            kept, size, begin = bytearray(), 0, offset + start
            if scanner.depth == 0:
                if mark != b"]":
                    raise _broken(name, offset + end, "the array is not closed")
                _refuse_more(file, piece[start:], name, at=begin)
                return
        kept += piece[start : start + max(0, room - len(kept))]
        size += len(piece) - start
        offset += len(piece)
        piece = file.read(_PIECE)
    raise _broken(name, offset, "the array is not closed")


def _opened(file: BinaryIO, name: str) -> tuple[int, bytes]:
    """The offset right after the opening bracket, and what was read from there."""
    head = file.read(_PIECE)
    at = len(head) - len(head.removeprefix(BOM).lstrip(BLANK))
    if head[at : at + 1] != b"[":
        raise _broken(name, at, "it does not begin with a bracket")
    return at + 1, head[at + 1 :] or file.read(_PIECE)


def _refuse_more(file: BinaryIO, rest: bytes, name: str, *, at: int) -> None:
    while rest:
        if rest.strip(BLANK):
            raise _broken(name, at, "text follows the array")
        rest = file.read(_PIECE)


def _broken(name: str, at: int, what: str) -> FileUnreadable:
    return FileUnreadable(
        f"not a JSON array, {what}", where=f"{name} byte {at}", fix="correct the file; none of its rows is kept"
    )
