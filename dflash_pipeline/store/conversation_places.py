"""Conversation ids in the warehouse: which are known, which are like one that is not, and where each comes from."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_pipeline.store.database import Connection, Database

MOST_SIMILAR = 3
LEAST_SIMILARITY = 0.75
"""Of Jaro and Winkler, in 0 … 1."""


def known_conversations(database: Database, ids: Sequence[str]) -> frozenset[str]:
    """Those of the ids that some ingestion has."""

    def act(connection: Connection) -> frozenset[str]:
        found = connection.execute(
            "SELECT DISTINCT conversation_id FROM conversations WHERE conversation_id IN (SELECT unnest(?::VARCHAR[]))",
            [list(ids)],
        )
        return frozenset(name for (name,) in found.fetchall())

    return database.read(act)


def similar_conversations(database: Database, wanted: str) -> tuple[str, ...]:
    """Ids that are spelt like this one, the most alike first; none where nothing is."""

    def act(connection: Connection) -> tuple[str, ...]:
        found = connection.execute(
            "SELECT conversation_id FROM (SELECT DISTINCT conversation_id FROM conversations) "
            "WHERE jaro_winkler_similarity(conversation_id, $1) >= $2 "
            "ORDER BY jaro_winkler_similarity(conversation_id, $1) DESC, conversation_id LIMIT $3",
            [wanted, LEAST_SIMILARITY, MOST_SIMILAR],
        )
        return tuple(name for (name,) in found.fetchall())

    return database.read(act)


def conversation_places(database: Database, ingestion: str, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """File and line of conversations of one ingestion; no key for one that it lacks."""

    def act(connection: Connection) -> dict[str, tuple[str, int]]:
        found = connection.execute(
            "SELECT conversation_id, file, line FROM conversations "
            "WHERE ingestion = ? AND conversation_id IN (SELECT unnest(?::VARCHAR[]))",
            [ingestion, list(ids)],
        )
        return {name: (file, line) for name, file, line in found.fetchall()}

    return database.read(act)
