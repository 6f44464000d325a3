"""Reading conversations back from the warehouse: batches that are bounded, whole, and in canonical order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pydantic import TypeAdapter

from dflash_pipeline.contracts.conversation import Conversation, Ingestion
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store import tables
from dflash_pipeline.store.database import Connection

# Opening a large file takes about as long as reading this many short rows of it.
_BATCH_ROWS = 16_384
_BATCH_SIZE = 32 * 2**20
# The first ones are few, so that work on them begins while the others are read.
_FIRST_ROWS = 2048
_FIRST_SIZE = 4 * 2**20
# Whoever tokenises them need not wait for the records of a whole batch.
_GIVEN_AT_ONCE = 512


def find_ingestion(connection: Connection, fingerprint: str) -> Ingestion | None:
    """The record of an ingestion; None where none was saved under the fingerprint."""
    found = connection.execute("SELECT record FROM ingestions WHERE fingerprint = ?", [fingerprint]).fetchall()
    return TypeAdapter(Ingestion).validate_json(found[0][0]) if found else None


def recorded_ingestion(connection: Connection, fingerprint: str) -> Ingestion:
    """Refused where it is not there."""
    # A warehouse that was damaged is empty now: "nothing" must never be read as "no rows".
    ingestion = find_ingestion(connection, fingerprint)
    if ingestion is None:
        raise incomplete(fingerprint, "it is not recorded")
    return ingestion


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Rows of `conversations` whose places follow each other."""

    rows: list[tuple[Any, ...]]
    is_last: bool
    """Whether no row follows."""

    def conversations(self) -> Iterator[list[Conversation]]:
        for first in range(0, len(self.rows), _GIVEN_AT_ONCE):
            yield [tables.conversation(row) for row in self.rows[first : first + _GIVEN_AT_ONCE]]


def read_batch(connection: Connection, ingestion: str, start: int, *, answered: bool) -> Batch:
    """Rows from place `start` on, bounded in number and in size; at least one, where there is one."""
    most_rows, most_size = (_BATCH_ROWS, _BATCH_SIZE) if start else (_FIRST_ROWS, _FIRST_SIZE)
    key = [ingestion, answered, start, start + most_rows]
    found = connection.execute(
        "SELECT ordinal, size FROM conversations WHERE ingestion = ? AND answered = ? AND ordinal >= ? AND ordinal < ? "
        "ORDER BY ordinal",
        key,
    ).fetchall()
    # Up to the first gap: what lies behind one must not take its place.
    sizes = [size for place, (ordinal, size) in enumerate(found, start) if ordinal == place]
    fitting = sum(total <= most_size for total in accumulate(sizes))
    number = max(min(1, len(sizes)), fitting)
    key[3] = start + number
    rows = connection.execute(
        "SELECT conversation_id, messages, split, file, line, tools, document, token_ids, loss_mask "
        "FROM conversations WHERE ingestion = ? AND answered = ? AND ordinal >= ? AND ordinal < ? ORDER BY ordinal",
        key,
    ).fetchall()
    # A full one may have others behind it; so may a shorter one that some did not fit into. An empty one ends all.
    return Batch(rows=rows, is_last=not rows or number == len(found) < most_rows)


def incomplete(ingestion: str, what: str) -> Refused:
    """The refusal of an ingestion that is not all there."""
    return Refused(what, where=f"ingestion {ingestion}", fix="run ingestion again, and what follows it")
