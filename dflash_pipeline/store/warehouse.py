"""The catalogue of everything that was built: what came in, what was refused, how long samples are, which plans ran.

Used on the build side only, and in short transactions. Every save may be repeated: the second changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pydantic import TypeAdapter

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, Reason, RejectedRow
from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import SpikeRecord
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import NoAnswer
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store import tables
from dflash_pipeline.store.database import Connection, Database
from dflash_pipeline.store.ingestions import IngestionDraft
from dflash_pipeline.store.manifest_views import manifest_views
from dflash_pipeline.store.plans import plan_folder
from dflash_pipeline.store.read_back import Batch, find_ingestion, incomplete, read_batch, recorded_ingestion

WAIT_SECONDS = 60.0
"""How long a call waits for another process to let go of the file."""


class Warehouse:
    """`warehouse.duckdb`. Its content is derived: a damaged file is set aside, and what it held is made anew."""

    __slots__ = ("database",)

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.database = Database(path, wait_seconds=wait_seconds)

    def find_ingestion(self, fingerprint: str) -> Ingestion | None:
        return self.database.read(lambda connection: find_ingestion(connection, fingerprint))

    def find_or_write_ingestion(
        self, fingerprint: str, read: Callable[[IngestionDraft], Ingestion]
    ) -> tuple[Ingestion, bool]:
        """What was saved under the fingerprint, and True; else what is written now, all of it or nothing, and False.

        `read` adds the verdicts and finishes the draft. It is called once more if the file turns out to be damaged.
        """
        return self.database.find_or_write(
            lambda connection: find_ingestion(connection, fingerprint),
            lambda connection: read(IngestionDraft(connection, fingerprint)),
        )

    def conversations(self, ingestion: str) -> list[Conversation]:
        """Those of an ingestion, in canonical order: all of them, or a refusal. Large ones are better streamed."""
        return [c for batch in self.stream_conversations(ingestion) for c in batch]

    def stream_conversations(self, ingestion: str) -> Iterator[list[Conversation]]:
        """Those of an ingestion in canonical order, batch by batch; a refusal at the end if some were missing.

        The file is open for some batches at a time, and what is read then is bounded in rows and in size.
        """
        yield from self._stream(ingestion, answered=True)

    def stream_prompts(self, ingestion: str) -> Iterator[list[Conversation]]:
        """The rows that came without an answer, likewise; where one belongs, an assistant turn without text stands."""
        yield from self._stream(ingestion, answered=False)

    def _stream(self, ingestion: str, *, answered: bool) -> Iterator[list[Conversation]]:
        def begin(connection: Connection) -> tuple[int, Batch]:
            recorded = recorded_ingestion(connection, ingestion)
            expected = recorded.accepted if answered else recorded.num_prompts
            return expected, read_batch(connection, ingestion, 0, answered=answered)

        expected, batch = self.database.read(begin)
        given = len(batch.rows)
        yield from batch.conversations()
        while not batch.is_last:
            batch = self._batch(ingestion, given, answered=answered)
            given += len(batch.rows)
            yield from batch.conversations()
        if given != expected:
            raise incomplete(ingestion, f"{given} of {expected} conversations are recorded")

    def _batch(self, ingestion: str, start: int, *, answered: bool) -> Batch:
        return self.database.read(lambda connection: read_batch(connection, ingestion, start, answered=answered))

    def rejected_rows(self, ingestion: str | None = None) -> list[RejectedRow]:
        """Those of an ingestion, or of the one saved last if there is one, in the order they were met."""

        def act(connection: Connection) -> list[RejectedRow]:
            if ingestion is not None:
                recorded_ingestion(connection, ingestion)
            found = connection.execute(
                "SELECT file, line, byte_offset, conversation_id, reason, excerpt FROM rejected_rows WHERE ingestion = "
                "coalesce(?, (SELECT arg_max(fingerprint, ordinal) FROM ingestions)) ORDER BY ordinal",
                [ingestion],
            )
            return [tables.rejected_row(row) for row in found.fetchall()]

        return self.database.read(act)

    def rejections(self, ingestion: str) -> list[tuple[str, Reason, int]]:
        """File, reason and number of rejected rows, files in their order."""

        def act(connection: Connection) -> list[tuple[str, Reason, int]]:
            return connection.execute(
                "SELECT file, reason, count(*) FROM rejected_rows WHERE ingestion = ? "
                "GROUP BY file, reason ORDER BY min(ordinal), reason",
                [ingestion],
            ).fetchall()

        return self.database.read(act)

    def rejected_sample(self, ingestion: str, *, each: int, most: int) -> list[RejectedRow]:
        """The first `each` rows of each file and reason, `most` of them altogether, in the order they were met."""

        def act(connection: Connection) -> list[RejectedRow]:
            found = connection.execute(
                "SELECT file, line, byte_offset, conversation_id, reason, excerpt FROM rejected_rows "
                "WHERE ingestion = ? QUALIFY row_number() OVER (PARTITION BY file, reason ORDER BY ordinal) <= ? "
                "ORDER BY ordinal LIMIT ?",
                [ingestion, each, most],
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

    def find_unanswered(self, target: str, settings: str, prompts: Sequence[str]) -> dict[str, NoAnswer]:
        """The prompts to which this target gave no answer under these settings, and why."""

        def act(connection: Connection) -> dict[str, NoAnswer]:
            asked = pa.table({"prompt": list(dict.fromkeys(prompts))}, schema=tables.PROMPTS)
            connection.register("incoming", asked)
            found = connection.execute(
                "SELECT prompt, reason FROM unanswered JOIN incoming USING (prompt) WHERE target = ? AND settings = ?",
                [target, settings],
            )
            return dict(found.fetchall())

        return self.database.read(act)

    def save_answers(
        self,
        target: str,
        settings: str,
        rows: Sequence[tuple[str, str, bool]],
        unanswered: Sequence[tuple[str, NoAnswer]] = (),
    ) -> None:
        """Add answers as (prompt, text, complete), and prompts without one as (prompt, reason).

        A prompt that has an answer keeps it; a reason gives way to an answer, or to a newer reason.
        """
        first = {prompt: (prompt, text, complete) for prompt, text, complete in reversed(rows)}
        columns = list(zip(*first.values(), strict=True)) or [(), (), ()]
        incoming = pa.table(dict(zip(tables.ANSWERS.names, columns, strict=True)), schema=tables.ANSWERS)
        reasons = dict(unanswered)
        without = pa.table({"prompt": list(reasons), "reason": list(reasons.values())}, schema=tables.UNANSWERED)
        settled = pa.table({"prompt": [*first, *reasons]}, schema=tables.PROMPTS)

        def act(connection: Connection) -> None:
            _insert(
                connection,
                "DELETE FROM unanswered WHERE target = ? AND settings = ? AND prompt IN (SELECT prompt FROM incoming)",
                settled,
                [target, settings],
            )
            _insert(connection, "INSERT INTO unanswered SELECT ?, ?, * FROM incoming", without, [target, settings])
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
        """Every (snapshot, sample id) that a conversation became, copies in order of sample id."""

        def act(connection: Connection) -> list[tuple[str, int]]:
            return connection.execute(
                "SELECT snapshot, sample_id FROM sequences WHERE conversation_id = ? ORDER BY snapshot, sample_id",
                [conversation_id],
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

    def save_plan(self, plan: RunPlan, *, plans: Path) -> None:
        """Keep the plan's totals, and make the manifests in the folder `plans` visible to SQL."""
        folder = plan_folder(plans, snapshot=plan.snapshot, spec=plan.spec).name

        def act(connection: Connection) -> None:
            key = [plan.fingerprint]
            connection.execute("DELETE FROM plans WHERE fingerprint = ?", key)
            connection.execute("DELETE FROM epochs WHERE plan = ?", key)
            connection.execute("INSERT INTO plans VALUES (?, ?, ?, ?)", [*key, plan.snapshot, folder, _json(plan)])
            epochs = tables.record_table(plan.epochs, tables.EPOCHS)
            _insert(connection, "INSERT INTO epochs SELECT ?, * FROM incoming", epochs, key)
            for view in manifest_views(plans):
                connection.execute(view)

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
