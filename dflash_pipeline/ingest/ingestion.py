"""All sources to one corpus of conversations: each row accepted, rejected with a reason, or counted as a duplicate."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from pathlib import Path

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, Reason, RejectedRow, SourceReport
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.faults import fault_point
from dflash_pipeline.ingest.conversation import Turns, derived_id, read_turns, row_id
from dflash_pipeline.ingest.rows import BadRow, Row, RowError, is_array, read_array, read_lines
from dflash_pipeline.ingest.split import held_out, prompt_hash

INGEST_VERSION = 1
"""Part of every ingestion's identity: raised when the same files would give other conversations."""

_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file, by its literal name, and for rows that are not chats the field of each role."""

    path: Path
    mapping: Mapping[str, str] = field(default_factory=dict)


def ingestion_fingerprint(
    sources: Sequence[SourceFile], *, max_rows: int | None, max_row_bytes: int, validation_fraction: float
) -> str:
    """Identity of what `ingest` would give: contents of the files in their order and settings, not names or places."""
    _refuse_unusable(sources)
    hashes = []
    for source in sources:
        with source.path.open("rb") as file:
            hashes.append(_sha256(file))
    return _fingerprint(
        sources, hashes, max_rows=max_rows, max_row_bytes=max_row_bytes, validation_fraction=validation_fraction
    )


def ingest(
    sources: Sequence[SourceFile], *, max_rows: int | None, max_row_bytes: int, validation_fraction: float
) -> tuple[Ingestion, list[Conversation], list[RejectedRow]]:
    """Read every source. Conversations come in canonical order: training, then validation, each by conversation id.

    Of rows with one id the first is kept: later ones with its text are exact duplicates, with another text rejected.
    A file that fails as a whole (a broken array) is reported in its `SourceReport` and gives nothing.
    """
    _refuse_unusable(sources)
    reading = _Reading()
    reports = [_read_source(source, reading, max_rows=max_rows, max_row_bytes=max_row_bytes) for source in sources]
    conversations = _split(reading.accepted.values(), validation_fraction)
    num_validation = sum(c.split == "validation" for c in conversations)
    ingestion = Ingestion(
        fingerprint=_fingerprint(
            sources,
            [report.sha256 for report in reports],
            max_rows=max_rows,
            max_row_bytes=max_row_bytes,
            validation_fraction=validation_fraction,
        ),
        accepted=len(conversations),
        rejected=len(reading.rejected),
        exact_duplicates=sum(report.exact_duplicates for report in reports),
        num_train=len(conversations) - num_validation,
        num_validation=num_validation,
        sources=tuple(reports),
        by_reason=dict(sorted(Counter(row.reason for row in reading.rejected).items())),
    )
    return ingestion, conversations, reading.rejected


@dataclass(frozen=True, kw_only=True, slots=True)
class _Accepted:
    conversation_id: str
    turns: Turns
    digest: str
    file: str
    line: int


@dataclass(slots=True)
class _Reading:
    """What has been read so far, over all sources."""

    accepted: dict[str, _Accepted] = field(default_factory=dict)
    rejected: list[RejectedRow] = field(default_factory=list)
    exact_duplicates: int = 0

    def take(self, row: Row | BadRow, mapping: Mapping[str, str], *, file: str) -> None:
        if isinstance(row, BadRow):
            self._reject(row, row.reason, None, file=file)
            return
        given = None
        try:
            given = row_id(row.value)
            turns = read_turns(row.value, mapping)
        except RowError as fault:
            self._reject(row, fault.reason, given, file=file)
            return
        digest = turns.digest
        conversation_id = derived_id(digest) if given is None else given
        known = self.accepted.get(conversation_id)
        if known is None:
            self.accepted[conversation_id] = _Accepted(
                conversation_id=conversation_id, turns=turns, digest=digest, file=file, line=row.line
            )
        elif known.digest == digest:
            self.exact_duplicates += 1
        else:
            self._reject(row, "duplicate_id_conflict", conversation_id, file=file)

    def _reject(self, row: Row | BadRow, reason: Reason, conversation_id: str | None, *, file: str) -> None:
        rejected = RejectedRow(
            file=file,
            line=row.line,
            byte_offset=row.byte_offset,
            conversation_id=conversation_id,
            reason=reason,
            excerpt=row.excerpt,
        )
        self.rejected.append(rejected)


def _read_source(source: SourceFile, reading: _Reading, *, max_rows: int | None, max_row_bytes: int) -> SourceReport:
    name = _shown(source.path)
    before = (len(reading.accepted), len(reading.rejected), reading.exact_duplicates)
    error = None
    with source.path.open("rb") as file:
        opened = os.fstat(file.fileno())
        fault_point("ingest.before-hash")
        sha256 = _sha256(file)
        fault_point("ingest.before-parse")
        rows: Iterable[Row | BadRow]
        try:
            if source.path.suffix == ".json" and is_array(file):
                rows = read_array(file, name=name, max_row_bytes=max_row_bytes)
            else:
                rows = read_lines(file, max_row_bytes=max_row_bytes)
        except Refused as refusal:
            rows, error = (), str(refusal)
        for row in islice(rows, max_rows):
            reading.take(row, source.mapping, file=name)
        _refuse_changed(file, opened, name)
        fault_point("ingest.after-parse")
    return SourceReport(
        file=name,
        sha256=sha256,
        accepted=len(reading.accepted) - before[0],
        rejected=len(reading.rejected) - before[1],
        exact_duplicates=reading.exact_duplicates - before[2],
        error=error,
    )


def _split(accepted: Iterable[_Accepted], validation_fraction: float) -> list[Conversation]:
    hashed = [(row, prompt_hash(row.turns.first_user_text)) for row in accepted]
    validation = held_out([h for _, h in hashed], validation_fraction)
    conversations = [
        Conversation(
            conversation_id=row.conversation_id,
            messages=row.turns.messages,
            split="validation" if h in validation else "train",
            file=row.file,
            line=row.line,
            tools=row.turns.tools,
        )
        for row, h in hashed
    ]
    return sorted(conversations, key=lambda c: (c.split == "validation", c.conversation_id))


def _fingerprint(
    sources: Sequence[SourceFile],
    hashes: Sequence[str],
    *,
    max_rows: int | None,
    max_row_bytes: int,
    validation_fraction: float,
) -> str:
    return fingerprint(
        version=INGEST_VERSION,
        # An array and a list of lines may have the same bytes, so the form is part of the identity.
        files=[(sha256, s.path.suffix == ".json", s.mapping) for s, sha256 in zip(sources, hashes, strict=True)],
        max_rows=max_rows,
        max_row_bytes=max_row_bytes,
        validation_fraction=validation_fraction,
    )


def _refuse_unusable(sources: Sequence[SourceFile]) -> None:
    for source in sources:
        name = _shown(source.path)
        if not source.path.is_file():
            raise Refused(
                "there is no such file", where=name, fix="correct data.sources; names are literal, without wildcards"
            )
        if source.path.suffix not in _SUFFIXES:
            raise Refused("not a known format", where=name, fix=f"use one of {', '.join(_SUFFIXES)}")
        if source.mapping and not {"user", "assistant"} <= set(source.mapping) <= {"system", "user", "assistant"}:
            raise Refused(
                f"map names {', '.join(sorted(source.mapping))}",
                where=name,
                fix="name the fields of user and assistant, and of system if there is one",
            )


def _refuse_changed(file: BufferedReader, opened: os.stat_result, name: str) -> None:
    now = os.fstat(file.fileno())
    if (now.st_size, now.st_mtime_ns) != (opened.st_size, opened.st_mtime_ns):
        raise Refused("the file changed while it was read", where=name, fix="run again when nothing writes to it")


def _sha256(file: BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(path: Path) -> str:
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)
