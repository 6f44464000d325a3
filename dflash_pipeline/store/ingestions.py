"""One ingestion on its way into the warehouse: verdicts are staged as they come, and sorted out when all are there.

Everything that grows with the number of rows lies in the database, which spills to disk: memory stays flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from dflash_pipeline.contracts.candidate import Candidate
from dflash_pipeline.contracts.conversation import Ingestion, RejectedRow, SourceReport
from dflash_pipeline.store.database import Connection
from dflash_pipeline.store.placing import place_conversations
from dflash_pipeline.store.tables import REJECTED_ROWS, messages_json

Threshold = Callable[[int, int], int]
"""From the lowest and the highest prompt hash to the one below which a conversation is held out."""

# In the file and not a temporary table: what a killed process leaves of it is free space, not a file of its own.
_STAGE = """
CREATE TABLE staged (
    ordinal BIGINT, source INTEGER, answered BOOLEAN, conversation_id VARCHAR, digest BLOB, prompt_hash UBIGINT,
    line BIGINT, byte_offset BIGINT, excerpt VARCHAR, size BIGINT, messages VARCHAR USING COMPRESSION zstd,
    tools VARCHAR, document VARCHAR USING COMPRESSION zstd, token_ids INTEGER[], loss_mask BOOLEAN[]);
CREATE TABLE staged_rejections (source INTEGER, ordinal BIGINT, file VARCHAR, line BIGINT, byte_offset BIGINT,
    conversation_id VARCHAR, reason VARCHAR, excerpt VARCHAR);
CREATE TABLE staged_sources (source INTEGER, file VARCHAR, sha256 VARCHAR, error VARCHAR);
"""
_STAGED = pa.schema(
    {
        "ordinal": pa.int64(),
        "source": pa.int32(),
        "answered": pa.bool_(),
        "conversation_id": pa.string(),
        "digest": pa.binary(),
        "prompt_hash": pa.uint64(),
        "line": pa.int64(),
        "byte_offset": pa.int64(),
        "excerpt": pa.string(),
        "size": pa.int64(),
        "messages": pa.large_string(),
        "tools": pa.large_string(),
        "document": pa.large_string(),
        "token_ids": pa.large_list(pa.int32()),
        "loss_mask": pa.large_list(pa.bool_()),
    }
)
# Of one id the first row counts. A prompt whose id a conversation has is no prompt any more.
_FIRSTS = """
CREATE TEMP TABLE firsts AS
    SELECT conversation_id, answered, min(ordinal) AS ordinal, arg_min(digest, ordinal) AS digest,
        arg_min(prompt_hash, ordinal) AS prompt_hash
    FROM staged GROUP BY conversation_id, answered;
DELETE FROM firsts WHERE NOT answered
    AND conversation_id IN (SELECT conversation_id FROM firsts WHERE answered);
CREATE TEMP TABLE repeats AS
    SELECT staged.ordinal, staged.source, staged.digest != firsts.digest AS conflict
    FROM staged JOIN firsts USING (conversation_id, answered)
    WHERE staged.answered AND staged.ordinal != firsts.ordinal;
INSERT INTO staged_rejections
    SELECT source, ordinal, file, line, byte_offset, conversation_id, 'duplicate_id_conflict', excerpt
    FROM repeats JOIN staged USING (ordinal, source) JOIN staged_sources USING (source) WHERE conflict;
"""
_HASHES = """
SELECT coalesce(min(prompt_hash) FILTER (answered), min(prompt_hash), 0),
    coalesce(max(prompt_hash) FILTER (answered), max(prompt_hash), 0) FROM firsts
"""
_REJECTED = """
INSERT INTO rejected_rows SELECT ?, row_number() OVER (ORDER BY ordinal) - 1, file, line, byte_offset,
    conversation_id, reason, excerpt FROM staged_rejections ORDER BY ordinal
"""
_SOURCES = """
INSERT INTO sources
    SELECT ?, source, file, sha256,
        (SELECT count(*) FROM firsts JOIN staged USING (ordinal, answered) WHERE staged.source = s.source AND answered),
        (SELECT count(*) FROM staged_rejections AS r WHERE r.source = s.source),
        (SELECT count(*) FROM repeats AS d WHERE d.source = s.source AND NOT conflict), error
    FROM staged_sources AS s ORDER BY source
"""
_DONE = """
DROP TABLE firsts; DROP TABLE repeats; DROP TABLE staged; DROP TABLE staged_rejections; DROP TABLE staged_sources;
"""


class IngestionDraft:
    """The rows of one ingestion, in the transaction that will keep all of it or nothing."""

    def __init__(self, connection: Connection, fingerprint: str) -> None:
        self._connection = connection
        self._fingerprint = fingerprint
        self._num_verdicts = 0
        self._num_sources = 0
        connection.execute(_STAGE)

    def add(self, verdicts: Sequence[Candidate | RejectedRow]) -> None:
        """Verdicts of the file being read, in the order of its rows."""
        numbered = list(enumerate(verdicts, self._num_verdicts))
        self._num_verdicts += len(numbered)
        candidates = [(n, v) for n, v in numbered if isinstance(v, Candidate)]
        rejected = [(n, v) for n, v in numbered if isinstance(v, RejectedRow)]
        # Not `register`: until the transaction ends it keeps every table alive.
        if candidates:
            self._connection.from_arrow(_staged(candidates, self._num_sources)).insert_into("staged")
        if rejected:
            self._connection.from_arrow(_rejections(rejected, self._num_sources)).insert_into("staged_rejections")

    def end_file(self, file: str, *, sha256: str, error: str | None) -> None:
        """The file is read. With an error, nothing of it is kept."""
        number = self._num_sources
        self._num_sources += 1
        if error is not None:
            self._connection.execute("DELETE FROM staged WHERE source = ?", [number])
            self._connection.execute("DELETE FROM staged_rejections WHERE source = ?", [number])
        self._connection.execute("INSERT INTO staged_sources VALUES (?, ?, ?, ?)", [number, file, sha256, error])

    def finish(self, threshold: Threshold) -> Ingestion:
        """Tell first rows from repeated ones, give each its side and its place, and record the whole.

        Conversations come in canonical order: training, then validation, each by conversation id.
        """
        run, key = self._connection.execute, [self._fingerprint]
        run("DELETE FROM ingestions WHERE fingerprint = ?", key)
        run("DELETE FROM sources WHERE ingestion = ?", key)
        run("DELETE FROM conversations WHERE ingestion = ?", key)
        run("DELETE FROM rejected_rows WHERE ingestion = ?", key)
        run(_FIRSTS)
        [(lowest, highest)] = run(_HASHES).fetchall()
        place_conversations(self._connection, self._fingerprint, threshold=threshold(lowest, highest))
        run(_REJECTED, key)
        run(_SOURCES, key)
        run(_DONE)
        ingestion = self._counted()
        run(
            "INSERT INTO ingestions SELECT coalesce(max(ordinal) + 1, 0), ?, ? FROM ingestions",
            [*key, TypeAdapter(Ingestion).dump_json(ingestion).decode()],
        )
        return ingestion

    def _counted(self) -> Ingestion:
        run, key = self._connection.execute, [self._fingerprint]
        sources = run(
            "SELECT file, sha256, accepted, rejected, exact_duplicates, error FROM sources "
            "WHERE ingestion = ? ORDER BY ordinal",
            key,
        ).fetchall()
        reasons = run(
            "SELECT reason, count(*) FROM rejected_rows WHERE ingestion = ? GROUP BY reason ORDER BY reason", key
        ).fetchall()
        [(train, validation, prompts)] = run(
            "SELECT count(*) FILTER (answered AND split = 'train'), count(*) FILTER (answered AND split != 'train'), "
            "count(*) FILTER (NOT answered) FROM conversations WHERE ingestion = ?",
            key,
        ).fetchall()
        reports = tuple(
            SourceReport(file=file, sha256=sha256, accepted=a, rejected=r, exact_duplicates=d, error=error)
            for file, sha256, a, r, d, error in sources
        )
        return Ingestion(
            fingerprint=self._fingerprint,
            accepted=train + validation,
            rejected=sum(number for _, number in reasons),
            exact_duplicates=sum(report.exact_duplicates for report in reports),
            num_train=train,
            num_validation=validation,
            num_prompts=prompts,
            sources=reports,
            by_reason=dict(reasons),
        )


def _staged(candidates: Sequence[tuple[int, Candidate]], source: int) -> pa.Table:
    rows = [candidate for _, candidate in candidates]
    columns: dict[str, list[Any]] = {
        "ordinal": [number for number, _ in candidates],
        "source": [source] * len(rows),
        "answered": [c.answered for c in rows],
        "conversation_id": [c.conversation_id for c in rows],
        "digest": [c.digest for c in rows],
        "prompt_hash": [c.prompt_hash for c in rows],
        "line": [c.line for c in rows],
        "byte_offset": [c.byte_offset for c in rows],
        "excerpt": [c.excerpt for c in rows],
        "size": [c.size for c in rows],
        "messages": [messages_json(c.messages) for c in rows],
        "tools": [c.tools for c in rows],
        "document": [c.document for c in rows],
        "token_ids": [c.tokenised.token_ids if c.tokenised else None for c in rows],
        "loss_mask": [c.tokenised.loss_mask if c.tokenised else None for c in rows],
    }
    return pa.table(columns, schema=_STAGED)


def _rejections(rejected: Sequence[tuple[int, RejectedRow]], source: int) -> pa.Table:
    columns: dict[str, Any] = {
        name: [number if name == "ordinal" else getattr(row, name) for number, row in rejected]
        for name in REJECTED_ROWS.names
    }
    rows = pa.table(columns, schema=REJECTED_ROWS)
    return rows.add_column(0, "source", pa.array([source] * len(rejected), pa.int32()))
