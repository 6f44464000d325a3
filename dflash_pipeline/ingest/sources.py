"""The files that a recipe's sources name: files by their literal names, folders and patterns in sorted order."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.faults import fault_point
from dflash_pipeline.ingest.formats import PACKED_SUFFIXES, SUFFIXES, detect_format, plain_suffix
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.unpack import FileUnreadable
from dflash_pipeline.recipe import Format, Mapped

_MAPPED: tuple[str, ...] = get_args(Mapped)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file, or before `expand` a folder or a pattern; and which fields hold what, if that has to be said."""

    path: Path
    mapping: Mapping[str, str] = field(default_factory=dict)
    format: Format | None = None
    weight: float = 1.0
    """How often its training conversations stand in a snapshot; changes nothing of what is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFile:
    """A file as it was when it was looked at: what it holds, how to read it, or why it cannot be read."""

    source: SourceFile
    name: str
    """As `shown` has it."""
    sha256: str
    size: int
    mtime_ns: int
    format: Format | None
    error: str | None

    def refuse_changed(self) -> None:
        """Raise `Refused` if the file is not what it was when it was looked at."""
        now = self.source.path.stat() if self.source.path.is_file() else None
        if now is None or (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise Refused(
                "the file changed while it was read", where=self.name, fix="run again when nothing writes to it"
            )


def expand(sources: Sequence[SourceFile]) -> list[SourceFile]:
    """One entry a file. What exists is meant literally, whatever its name; only what does not may be a pattern.

    A folder gives its files with known endings, those of its subfolders too; a pattern gives every file it matches.
    Hidden files are left out of both.
    """
    return [replace(source, path=path) for source in sources for path in _files(source)]


def look_at(source: SourceFile, limits: Limits) -> KnownFile:
    """Hash the file and find its format; why it cannot be read is told in `error`.

    Raises `Refused` for what the recipe has wrong: a file that is missing, a mapping, a format that cannot be told.
    """
    path, name = source.path, shown(source.path)
    if not path.is_file():
        raise Refused("there is no such file", where=name, fix="correct data.sources")
    refuse_mapping(source, name)
    fault_point("ingest.before-hash")
    status = path.stat()
    found, error, sha256 = source.format, None, ""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        found = found or detect_format(path, name=name, limits=limits)
    except FileUnreadable as refusal:
        error = str(refusal)
    except OSError as failure:
        error = f"{name}: {failure.strerror or failure}; correct its permissions or replace it"
    return KnownFile(
        source=source,
        name=name,
        sha256=sha256,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        format=found,
        error=error,
    )


def _files(source: SourceFile) -> list[Path]:
    path = source.path
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*")) if p.is_file() and _has_known_ending(p) and not _hidden(p, path)]
        what = "the folder holds no file of a known format"
    elif path.exists() or not glob.has_magic(str(path)):
        return [path]
    else:
        found = [p for p in _matches(path) if p.is_file()]
        what = "no file has this name or matches it as a pattern"
    if not found:
        raise Refused(what, where=shown(path), fix="correct data.sources")
    return found


def _matches(pattern: Path) -> list[Path]:
    """Only what does not exist is a pattern: a folder above it may have brackets in its name."""
    absolute = pattern.absolute()
    base = Path(absolute.anchor)
    parts = list(absolute.parts[1:])
    while parts and (base / parts[0]).is_dir():
        base /= parts.pop(0)
    try:
        return [found for found in sorted(base.glob("/".join(parts))) if not _hidden(found, base)]
    except ValueError as error:
        raise Refused(str(error), where=shown(pattern), fix="correct data.sources") from None


def _has_known_ending(path: Path) -> bool:
    return plain_suffix(path) in SUFFIXES or path.suffix.lower() in PACKED_SUFFIXES


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def refuse_mapping(source: SourceFile, name: str) -> None:
    """Refuse a mapping that names too little of a row to make a conversation, or two ways at once."""
    names = set(source.mapping)
    content = names - {"id", "tools"}
    turns = {"user", "assistant"} <= content <= {"system", "user", "assistant"}
    if not (names <= set(_MAPPED) and (turns or content in (set(), {"messages"}, {"text"}))):
        raise Refused(
            f"map names {', '.join(sorted(names))}",
            where=name,
            fix="name the fields of user and assistant (and of system if there is one), or that of messages, or that "
            "of text; beside them id and tools",
        )


def shown(path: Path) -> str:
    """The name of a file as records have it: relative to the working directory where that is possible."""
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)
