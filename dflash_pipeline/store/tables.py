"""The warehouse's tables, the fixed Arrow schemas rows arrive in, and rows to and from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from dflash_pipeline.contracts.conversation import Conversation, Message, PreTokenised, RejectedRow
from dflash_pipeline.contracts.errors import ContractBroken

SCHEMA_VERSION = 2
"""Raised when a table changes; an older file is refused, never guessed at."""

# Long texts name their compression: to find the best of several for them takes longer than all else that writing does.
# No keys or indexes: every save deletes and inserts in one transaction, which DuckDB's unique indexes do not bear.
SCHEMA = """
CREATE TABLE schema_version (version INTEGER);
CREATE TABLE ingestions (ordinal BIGINT, fingerprint VARCHAR, record VARCHAR);
CREATE TABLE sources (
    ingestion VARCHAR, ordinal BIGINT, file VARCHAR, sha256 VARCHAR, accepted BIGINT, rejected BIGINT,
    exact_duplicates BIGINT, error VARCHAR);
CREATE TABLE conversations (
    ingestion VARCHAR, answered BOOLEAN, ordinal BIGINT, size BIGINT, conversation_id VARCHAR, split VARCHAR,
    file VARCHAR, line BIGINT, messages VARCHAR USING COMPRESSION zstd, tools VARCHAR,
    document VARCHAR USING COMPRESSION zstd, token_ids INTEGER[], loss_mask BOOLEAN[]);
CREATE TABLE rejected_rows (
    ingestion VARCHAR, ordinal BIGINT, file VARCHAR, line BIGINT, byte_offset BIGINT, conversation_id VARCHAR,
    reason VARCHAR, excerpt VARCHAR);
CREATE TABLE answers (
    target VARCHAR, settings VARCHAR, prompt VARCHAR, text VARCHAR, complete BOOLEAN);
CREATE TABLE sequences (
    snapshot VARCHAR, sample_id BIGINT, conversation_id VARCHAR, split VARCHAR, shard VARCHAR, row BIGINT,
    num_tokens BIGINT, num_supervised BIGINT);
CREATE TABLE length_histogram (snapshot VARCHAR, length BIGINT, count BIGINT);
CREATE TABLE boundaries (snapshot VARCHAR, fingerprint VARCHAR, record VARCHAR);
CREATE TABLE plans (fingerprint VARCHAR, snapshot VARCHAR, folder VARCHAR, record VARCHAR);
CREATE TABLE epochs (
    plan VARCHAR, epoch BIGINT, num_steps BIGINT, num_micro_batches BIGINT, num_fillers BIGINT, num_samples BIGINT,
    num_dropped BIGINT, real_tokens BIGINT, padded_tokens BIGINT, supervised_tokens BIGINT, cost DOUBLE,
    digest VARCHAR);
CREATE TABLE runs (
    run VARCHAR, plan VARCHAR, status VARCHAR, mlflow_run_id VARCHAR, record VARCHAR);
CREATE TABLE spikes (
    run VARCHAR, global_step BIGINT, epoch BIGINT, step BIGINT, bucket BIGINT, loss DOUBLE, expected_loss DOUBLE);
"""

# It came later and changes no other table: an older file gets it, empty, and keeps the answers that it holds.
UNANSWERED_TABLE = (
    "CREATE TABLE IF NOT EXISTS unanswered (target VARCHAR, settings VARCHAR, prompt VARCHAR, reason VARCHAR)"
)

REJECTED_ROWS = pa.schema(
    {
        "ordinal": pa.int64(),
        "file": pa.string(),
        "line": pa.int64(),
        "byte_offset": pa.int64(),
        "conversation_id": pa.string(),
        "reason": pa.string(),
        "excerpt": pa.string(),
    }
)
ANSWERS = pa.schema({"prompt": pa.large_string(), "text": pa.large_string(), "complete": pa.bool_()})
UNANSWERED = pa.schema({"prompt": pa.large_string(), "reason": pa.string()})
PROMPTS = pa.schema({"prompt": pa.large_string()})
SEQUENCES = pa.schema(
    {
        "sample_id": pa.int64(),
        "conversation_id": pa.string(),
        "split": pa.string(),
        "shard": pa.string(),
        "row": pa.int64(),
        "num_tokens": pa.int64(),
        "num_supervised": pa.int64(),
    }
)
EPOCHS = pa.schema(
    {
        "epoch": pa.int64(),
        "num_steps": pa.int64(),
        "num_micro_batches": pa.int64(),
        "num_fillers": pa.int64(),
        "num_samples": pa.int64(),
        "num_dropped": pa.int64(),
        "real_tokens": pa.int64(),
        "padded_tokens": pa.int64(),
        "supervised_tokens": pa.int64(),
        "cost": pa.float64(),
        "digest": pa.string(),
    }
)
SPIKES = pa.schema(
    {
        "global_step": pa.int64(),
        "epoch": pa.int64(),
        "step": pa.int64(),
        "bucket": pa.int64(),
        "loss": pa.float64(),
        "expected_loss": pa.float64(),
    }
)

_MESSAGES = TypeAdapter(tuple[Message, ...])


def record_table(records: Sequence[object], schema: pa.Schema) -> pa.Table:
    """One row a record, its columns the fields that the schema names; `ordinal` is the record's place."""
    columns = {
        name: list(range(len(records))) if name == "ordinal" else [getattr(record, name) for record in records]
        for name in schema.names
    }
    return pa.table(columns, schema=schema)


def messages_json(messages: tuple[Message, ...]) -> str:
    return _MESSAGES.dump_json(messages, exclude_defaults=True).decode()


def conversation(row: tuple[Any, ...]) -> Conversation:
    """A row of conversation_id, messages, split, file, line, tools, document, token_ids, loss_mask."""
    conversation_id, messages, split, file, line, tools, document, token_ids, loss_mask = row
    return Conversation(
        conversation_id=conversation_id,
        messages=_MESSAGES.validate_json(messages),
        split=split,
        file=file,
        line=line,
        tools=tools,
        document=document,
        tokenised=PreTokenised(token_ids=tuple(token_ids), loss_mask=tuple(loss_mask)) if token_ids else None,
    )


def rejected_row(row: tuple[Any, ...]) -> RejectedRow:
    """A row of file, line, byte_offset, conversation_id, reason, excerpt."""
    file, line, byte_offset, conversation_id, reason, excerpt = row
    return RejectedRow(
        file=file,
        line=line,
        byte_offset=byte_offset,
        conversation_id=conversation_id,
        reason=reason,
        excerpt=excerpt,
    )


def sequence_table(table: pa.Table, *, snapshot: str) -> pa.Table:
    """The table in the fixed schema, which must hold every column and each sample id from 0 on once."""
    missing = [name for name in SEQUENCES.names if name not in table.column_names]
    if missing:
        raise ContractBroken(
            f"no column {', '.join(missing)}", where=f"sequences of snapshot {snapshot}", fix="give every column"
        )
    try:
        fixed = table.select(SEQUENCES.names).cast(SEQUENCES)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ContractBroken(
            f"{error}", where=f"sequences of snapshot {snapshot}", fix="give columns that fit store/tables.py SEQUENCES"
        ) from None
    ids = fixed["sample_id"].to_numpy()
    if not np.array_equal(np.sort(ids), np.arange(table.num_rows)):
        raise ContractBroken(
            "sample ids are not 0, 1, 2 … once each",
            where=f"sequences of snapshot {snapshot}",
            fix="number the samples densely in canonical order",
        )
    return fixed
