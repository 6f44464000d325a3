"""Conversations of an ingestion from the order they were read in to their canonical order, whatever their size.

Sorted as they are, gigabytes of texts go beyond the memory that DuckDB is given, though it spills. So places are found
for narrow rows, and the texts are dealt to parts of a bounded size by their place; each part is sorted by itself. It
is all in the database file and in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from duckdb import ColumnExpression, ConstantExpression, StarExpression

from dflash_pipeline.store.database import Connection

PART_SIZE = 48 * 2**20
"""Characters of text that are sorted at once, or a single row that has more."""

_PLACED = """
CREATE TEMP TABLE placed AS
    SELECT ordinal, answered, validation, place,
        CAST((sum(size) OVER (ORDER BY answered DESC, place ROWS UNBOUNDED PRECEDING) - size) // $2 AS INTEGER) AS part
    FROM (SELECT firsts.ordinal, firsts.answered, staged.size, firsts.prompt_hash < $1::UBIGINT AS validation,
            row_number() OVER (PARTITION BY firsts.answered
                ORDER BY firsts.prompt_hash < $1::UBIGINT, firsts.conversation_id) - 1 AS place
        FROM firsts JOIN staged ON firsts.ordinal = staged.ordinal)
"""
_COLUMNS = """
    $1 AS ingestion, placed.answered, placed.place AS ordinal, size, conversation_id,
    CASE WHEN placed.validation THEN 'validation' ELSE 'train' END AS split, file, line, messages, tools, document,
    token_ids, loss_mask
FROM placed JOIN staged ON placed.ordinal = staged.ordinal JOIN staged_sources USING (source)
"""
_AT_ONCE = f"INSERT INTO conversations SELECT {_COLUMNS} ORDER BY placed.answered DESC, placed.place"
_PIECE = f"""
CREATE OR REPLACE TEMP TABLE piece AS SELECT part, {_COLUMNS} WHERE staged.ordinal >= $2 AND staged.ordinal < $3
"""
# Ordinals up to which the rows before them, and not yet taken, make up about a part.
_ENDS = """
SELECT max(ordinal) + 1 FROM (
    SELECT ordinal, sum(size) OVER (ORDER BY ordinal ROWS UNBOUNDED PRECEDING) // $1 AS piece FROM staged)
GROUP BY piece ORDER BY piece
"""


def place_conversations(connection: Connection, ingestion: str, *, threshold: int) -> None:
    """Fill `conversations` from `staged` and `firsts`: training, then validation, then prompts, each by id."""
    connection.execute(_PLACED, [threshold, PART_SIZE])
    [(last,)] = connection.execute("SELECT coalesce(max(part), 0) FROM placed").fetchall()
    if last == 0:
        connection.execute(_AT_ONCE, [ingestion])
    else:
        _deal(connection, ingestion, last + 1)
    connection.execute("DROP TABLE placed")


def _deal(connection: Connection, ingestion: str, num_parts: int) -> None:
    connection.execute("CREATE SCHEMA dealt")
    for part in range(num_parts):
        connection.table("conversations").limit(0).create(_name(part))
    for first, end in _pieces(connection):
        connection.execute(_PIECE, [ingestion, first, end])
        for (part,) in connection.execute("SELECT DISTINCT part FROM piece").fetchall():
            rows = connection.table("piece").filter(ColumnExpression("part") == ConstantExpression(part))
            rows.select(StarExpression(exclude=["part"])).insert_into(_name(part))
    connection.execute("DROP TABLE piece")
    for part in range(num_parts):
        connection.table(_name(part)).order("answered DESC, ordinal").insert_into("conversations")
        drop = f"DROP TABLE {_name(part)}"  # Of a number of our own.
        connection.execute(drop)
    connection.execute("DROP SCHEMA dealt")


def _name(part: int) -> str:
    return f"dealt.part_{part}"


def _pieces(connection: Connection) -> Iterator[tuple[int, int]]:
    """Ranges of ordinals, in the order that rows were read, of about a part each."""
    ends = [end for (end,) in connection.execute(_ENDS, [PART_SIZE]).fetchall()]
    return pairwise([0, *ends])
