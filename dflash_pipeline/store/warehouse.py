"""The catalogue of everything that was built: what came in, what was refused, how long samples are, which plans ran.

Used on the build side only, and in short transactions. Every save may be repeated: the second changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pydantic import TypeAdapter

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, RejectedRow
from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import SpikeRecord
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store import tables
from dflash_pipeline.store.database import Connection, Database

WAIT_SECONDS = 60.0
"""How long a call waits for another process to let go of the file."""


class Warehouse:
    """`warehouse.duckdb`. Its content is derived: a damaged file is set aside, and what it held is made anew."""

    __slots__ = ("database",)

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.database = Database(path, wait_seconds=wait_seconds)

    def find_ingestion(self, fingerprint: str) -> Ingestion | None:
        return self.database.read(lambda connection: _ingestion(connection, fingerprint))

    def save_ingestion(
        self, ingestion: Ingestion, conversations: Sequence[Conversation], rejected: Sequence[RejectedRow]
    ) -> None:
        """Everything of one ingestion, in the order given, in place of what was saved under its fingerprint."""

        def act(connection: Connection) -> None:
            key = [ingestion.fingerprint]
            connection.execute("DELETE FROM ingestions WHERE fingerprint = ?", key)
            connection.execute("DELETE FROM sources WHERE ingestion = ?", key)
            connection.execute("DELETE FROM conversations WHERE ingestion = ?", key)
            connection.execute("DELETE FROM rejected_rows WHERE ingestion = ?", key)
            connection.execute(
                "INSERT INTO ingestions SELECT coalesce(max(ordinal) + 1, 0), ?, ? FROM ingestions",
                [*key, _json(ingestion)],
            )
            sources = tables.record_table(ingestion.sources, tables.SOURCES)
            _insert(connection, "INSERT INTO sources SELECT ?, * FROM incoming", sources, key)
            for chunk in tables.conversation_tables(conversations):
                _insert(connection, "INSERT INTO conversations SELECT ?, * FROM incoming", chunk, key)
            rows = tables.record_table(rejected, tables.REJECTED_ROWS)
            _insert(connection, "INSERT INTO rejected_rows SELECT ?, * FROM incoming", rows, key)

        self.database.write(act)

    def conversations(self, ingestion: str) -> list[Conversation]:
        """Those of an ingestion, in canonical order: all of them, or a refusal."""

        def act(connection: Connection) -> list[Conversation]:
            expected = _recorded(connection, ingestion).accepted
            found = connection.execute(
                "SELECT conversation_id, messages, split, file, line, tools FROM conversations "
                "WHERE ingestion = ? ORDER BY ordinal",
                [ingestion],
            )
            conversations: list[Conversation] = []
            while rows := found.fetchmany(tables.CHUNK):
                conversations.extend(tables.conversation(row) for row in rows)
            if len(conversations) != expected:
                raise _incomplete(ingestion, f"{len(conversations)} of {expected} conversations are recorded")
            return conversations

        return self.database.read(act)

    def rejected_rows(self, ingestion: str | None = None) -> list[RejectedRow]:
        """Those of an ingestion, or of the one saved last if there is one, in the order they were met."""

        def act(connection: Connection) -> list[RejectedRow]:
            if ingestion is not None:
                _recorded(connection, ingestion)
            found = connection.execute(
                "SELECT file, line, byte_offset, conversation_id, reason, excerpt FROM rejected_rows WHERE ingestion = "
                "coalesce(?, (SELECT arg_max(fingerprint, ordinal) FROM ingestions)) ORDER BY ordinal",
                [ingestion],
            )
            return [tables.rejected_row(row) for row in found.fetchall()]

        return self.database.read(act)

    def find_answers(self, target: str, settings: str, prompts: Sequence[str]) -> dict[str, tuple[str, bool]]:
        """The prompts that this target has answered under these settings: each answer's text, and if it is complete."""

        def act(connection: Connection) -> dict[str, tuple[str, bool]]:
            asked = pa.table({"prompt": list(dict.fromkeys(prompts))}, schema=tables.PROMPTS)
            connection.register("incoming", asked)
            found = connection.execute(
                "SELECT prompt, text, complete FROM answers JOIN incoming USING (prompt) "
                "WHERE target = ? AND settings = ?",
                [target, settings],
            )
            return {prompt: (text, complete) for prompt, text, complete in found.fetchall()}

        return self.database.read(act)

    def save_answers(self, target: str, settings: str, rows: Sequence[tuple[str, str, bool]]) -> None:
        """Add answers as (prompt, text, complete); a prompt that has one keeps it."""
        first = {prompt: (prompt, text, complete) for prompt, text, complete in reversed(rows)}
        columns = list(zip(*first.values(), strict=True)) or [(), (), ()]
        incoming = pa.table(dict(zip(tables.ANSWERS.names, columns, strict=True)), schema=tables.ANSWERS)

        def act(connection: Connection) -> None:
            _insert(
                connection,
                "INSERT INTO answers SELECT $1, $2, * FROM incoming WHERE NOT EXISTS (FROM answers "
                "WHERE answers.target = $1 AND answers.settings = $2 AND answers.prompt = incoming.prompt)",
                incoming,
                [target, settings],
            )

        self.database.write(act)

    def save_sequences(self, snapshot: str, table: pa.Table) -> None:
        """One row a sample (store/tables.py, SEQUENCES), in place of what the snapshot had."""
        incoming = tables.sequence_table(table, snapshot=snapshot)

        def act(connection: Connection) -> None:
            connection.execute("DELETE FROM sequences WHERE snapshot = ?", [snapshot])
            _insert(connection, "INSERT INTO sequences SELECT ?, * FROM incoming", incoming, [snapshot])

        self.database.write(act)

    def sequence_lengths(self, snapshot: str) -> pa.Table:
        """sample_id, num_tokens, num_supervised of the training side, in order of sample id."""

        def act(connection: Connection) -> pa.Table:
            lengths = connection.sql(
                "SELECT sample_id, num_tokens, num_supervised FROM sequences "
                "WHERE snapshot = ? AND split = 'train' ORDER BY sample_id",
                params=[snapshot],
            ).to_arrow_table()
            if not lengths.num_rows:
                raise _no_sequences(snapshot)
            return lengths

        return self.database.read(act)

    def find_samples(self, conversation_id: str) -> list[tuple[str, int]]:
        """Every (snapshot, sample id) that a conversation became."""

        def act(connection: Connection) -> list[tuple[str, int]]:
            return connection.execute(
                "SELECT snapshot, sample_id FROM sequences WHERE conversation_id = ?", [conversation_id]
            ).fetchall()

        return self.database.read(act)

    def histogram(self, snapshot: str) -> LengthStatistics:
        """The exact histogram of training lengths, counted from the sequences and stored."""

        def act(connection: Connection) -> LengthStatistics:
            connection.execute("DELETE FROM length_histogram WHERE snapshot = ?", [snapshot])
            connection.execute(
                "INSERT INTO length_histogram SELECT snapshot, num_tokens, count(*) FROM sequences "
                "WHERE snapshot = ? AND split = 'train' GROUP BY snapshot, num_tokens",
                [snapshot],
            )
            counted = connection.execute(
                "SELECT length, count FROM length_histogram WHERE snapshot = ? ORDER BY length", [snapshot]
            ).fetchall()
            if not counted:
                raise _no_sequences(snapshot)
            supervised = connection.execute(
                "SELECT sum(num_supervised)::BIGINT FROM sequences WHERE snapshot = ? AND split = 'train'", [snapshot]
            ).fetchall()
            lengths, counts = zip(*counted, strict=True)
            return LengthStatistics(
                snapshot=snapshot, lengths=lengths, counts=counts, num_supervised_tokens=supervised[0][0]
            )

        return self.database.write(act)

    def save_boundaries(self, snapshot: str, *, fingerprint: str, record: object) -> None:
        """Boundaries chosen for a snapshot; `record` is the frozen record that tells how."""

        def act(connection: Connection) -> None:
            key = [snapshot, fingerprint]
            connection.execute("DELETE FROM boundaries WHERE snapshot = ? AND fingerprint = ?", key)
            connection.execute("INSERT INTO boundaries VALUES (?, ?, ?)", [*key, _json(record)])

        self.database.write(act)

    def save_plan(self, plan: RunPlan) -> None:
        def act(connection: Connection) -> None:
            key = [plan.fingerprint]
            connection.execute("DELETE FROM plans WHERE fingerprint = ?", key)
            connection.execute("DELETE FROM epochs WHERE plan = ?", key)
            connection.execute("INSERT INTO plans VALUES (?, ?, ?)", [*key, plan.snapshot, _json(plan)])
            epochs = tables.record_table(plan.epochs, tables.EPOCHS)
            _insert(connection, "INSERT INTO epochs SELECT ?, * FROM incoming", epochs, key)

        self.database.write(act)

    def save_run(self, record: RunRecord) -> None:
        """Where a run stands, in place of what was known of it."""

        def act(connection: Connection) -> None:
            connection.execute("DELETE FROM runs WHERE run = ?", [record.run])
            connection.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?)",
                [record.run, record.plan, record.status, record.mlflow_run_id, _json(record)],
            )

        self.database.write(act)

    def save_spikes(self, run: str, spikes: Sequence[SpikeRecord]) -> None:
        """All spikes of a run, in place of those it had."""
        rows = tables.record_table(spikes, tables.SPIKES)

        def act(connection: Connection) -> None:
            connection.execute("DELETE FROM spikes WHERE run = ?", [run])
            _insert(connection, "INSERT INTO spikes SELECT ?, * FROM incoming", rows, [run])

        self.database.write(act)


def _ingestion(connection: Connection, fingerprint: str) -> Ingestion | None:
    found = connection.execute("SELECT record FROM ingestions WHERE fingerprint = ?", [fingerprint]).fetchall()
    return TypeAdapter(Ingestion).validate_json(found[0][0]) if found else None


def _recorded(connection: Connection, fingerprint: str) -> Ingestion:
    # A warehouse that was damaged is empty now: "nothing" must never be read as "no rows".
    ingestion = _ingestion(connection, fingerprint)
    if ingestion is None:
        raise _incomplete(fingerprint, "it is not recorded")
    return ingestion


def _incomplete(ingestion: str, what: str) -> Refused:
    return Refused(what, where=f"ingestion {ingestion}", fix="run ingestion again, and what follows it")


def _no_sequences(snapshot: str) -> Refused:
    return Refused(
        "no training sequences are recorded", where=f"snapshot {snapshot}", fix="run tokenisation for this snapshot"
    )


def _insert(connection: Connection, statement: str, incoming: pa.Table, values: Sequence[str]) -> None:
    """Run a statement that reads the table as `incoming`."""
    connection.register("incoming", incoming)
    connection.execute(statement, values)
    connection.unregister("incoming")


def _json(record: object) -> str:
    return TypeAdapter(type(record)).dump_json(record).decode()
