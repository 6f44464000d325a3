"""Which format a file has, from its content, and its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.arrays import read_array
from dflash_pipeline.ingest.documents import read_document, read_text_lines
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.parquet import MAGIC, read_parquet
from dflash_pipeline.ingest.rows import BLANK, BOM, BadRow, Row, read_lines
from dflash_pipeline.ingest.separated import read_separated
from dflash_pipeline.ingest.unpack import FileUnreadable, open_unpacked, packing
from dflash_pipeline.recipe import Format

_LINE_SUFFIXES = (".jsonl", ".ndjson")
_BY_NAME: dict[str, Format] = {".csv": "csv", ".tsv": "tsv", ".txt": "lines", ".md": "document"}
SUFFIXES = (*_LINE_SUFFIXES, ".json", ".parquet", *_BY_NAME)
PACKED_SUFFIXES = (".gz", ".zst")
_HEAD = 2**20


def detect_format(path: Path, *, name: str, limits: Limits) -> Format:
    """JSON and Parquet by what the file begins with; text, which may begin with anything, by its name.

    Raises `FileUnreadable` for a damaged file, and `Refused` for content and a name that tell no format.
    """
    with open_unpacked(path, name=name, limits=limits) as file:
        head = file.read(_HEAD)
    suffix = plain_suffix(path)
    if head.startswith(MAGIC):
        return "parquet"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileUnreadable("the text is UTF-16", where=name, fix="convert it to UTF-8; none of its rows is kept")
    if suffix in _BY_NAME:
        return _BY_NAME[suffix]
    text = head.removeprefix(BOM).lstrip(BLANK)
    if text.startswith(b"["):
        return "jsonl" if suffix in _LINE_SUFFIXES and _first_line_is_a_row(text) else "json"
    if text.startswith(b"{") or suffix in (*_LINE_SUFFIXES, ".json"):
        return "jsonl"
    raise Refused(
        "not a known format",
        where=name,
        fix=f"name it {', '.join(SUFFIXES)}, each also with {' or '.join(PACKED_SUFFIXES)}, or set the source's format",
    )


def read_rows(path: Path, file_format: Format, *, name: str, limits: Limits) -> Iterator[Row | BadRow]:
    """The file's rows in order. Raises `FileUnreadable` as late as a fault of the whole file is met."""
    if file_format == "parquet":
        size = path.stat().st_size
        if packing(path) == "none":
            yield from read_parquet(path, name=name, size=size, limits=limits)
            return
        with open_unpacked(path, name=name, limits=limits) as file, TemporaryFile() as plain:
            # Its end is read first, so it cannot be a stream; on disk it takes no memory.
            copyfileobj(file, plain, _HEAD)
            yield from read_parquet(plain, name=name, size=size, limits=limits)
        return
    with open_unpacked(path, name=name, limits=limits) as file:
        if file_format == "json":
            yield from read_array(file, name=name, limits=limits)
        elif file_format == "jsonl":
            yield from read_lines(file, limits)
        elif file_format == "lines":
            yield from read_text_lines(file, limits)
        elif file_format == "document":
            yield from read_document(file, limits)
        else:
            delimiter = "," if file_format == "csv" else "\t"
            yield from read_separated(file, delimiter=delimiter, name=name, limits=limits)


def plain_suffix(path: Path) -> str:
    """The name's ending in lower case, without that of a packing."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _first_line_is_a_row(text: bytes) -> bool:
    """Whether a list stands alone in the first line and more follows: then it is one bad row of a file of lines."""
    line, _, rest = text.partition(b"\n")
    if not rest.strip(BLANK):
        return False
    try:
        return isinstance(json.loads(line), list)
    except (ValueError, RecursionError):
        return False
