"""A source file as a stream of bytes: as it is, or unpacked piece by piece and stopped at a limit."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import pyarrow as pa

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.limits import Limits

Packing = Literal["none", "gz", "zst"]

_MAGIC: dict[bytes, Packing] = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
_PIECE = 2**20
_HARMLESS = 16 * 2**20
"""Below this a ratio says nothing: a short file of one repeated line packs a thousandfold."""


class FileUnreadable(Refused):
    """One file that cannot be taken as a whole. It costs none of the others."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


def packing(path: Path) -> Packing:
    """How the file is packed, by its first bytes; its name does not count."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "none")


def open_unpacked(path: Path, *, name: str, limits: Limits) -> BinaryIO:
    """The file's content from its start. Reading on raises `FileUnreadable` where it is damaged or above a limit."""
    try:
        kind = packing(path)
        inner: _Readable
        if kind == "gz":
            inner = gzip.GzipFile(path, "rb")
        elif kind == "zst":
            inner = pa.input_stream(str(path), compression="zstd", buffer_size=_PIECE)
        else:
            inner = path.open("rb", buffering=0)
        most = _most_bytes(path.stat().st_size, limits) if kind != "none" else None
    except OSError as error:
        raise _unreadable(name, str(error)) from error
    return io.BufferedReader(_Bounded(inner, name=name, most=most), _PIECE)


def _most_bytes(packed: int, limits: Limits) -> int:
    return min(limits.unpacked_bytes, max(_HARMLESS, int(packed * limits.unpacked_ratio)))


class _Bounded(io.RawIOBase):
    """What `inner` gives, up to `most` bytes."""

    def __init__(self, inner: _Readable, *, name: str, most: int | None) -> None:
        self._inner = inner
        self._name = name
        self._most = most
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            piece = self._inner.read(min(len(buffer), _PIECE))
        # Each codec has its own word for bytes that are not its own.
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            raise _unreadable(self._name, f"damaged after {self._given} bytes: {error}") from error
        self._given += len(piece)
        if self._most is not None and self._given > self._most:
            raise FileUnreadable(
                f"it unpacks to more than {self._most} bytes",
                where=self._name,
                fix="unpack it yourself if you trust it, or raise data.max_unpacked_bytes and data.max_unpacked_ratio",
            )
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def _unreadable(name: str, what: str) -> FileUnreadable:
    return FileUnreadable(what, where=name, fix="replace the file; none of its rows is kept")
