from __future__ import annotations

import ast
import logging
import math
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dflash_pipeline.store
from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.candidate import Candidate
from dflash_pipeline.contracts.conversation import (
    Conversation,
    Ingestion,
    Message,
    PreTokenised,
    RejectedRow,
    SourceReport,
)
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.events import SpikeRecord
from dflash_pipeline.contracts.manifest import EpochSummary
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import Attempt, RunRecord
from dflash_pipeline.store.database import Connection, Database
from dflash_pipeline.store.ingestions import IngestionDraft
from dflash_pipeline.store.warehouse import Warehouse

CONVERSATIONS = [
    Conversation(
        conversation_id="o'brien\"; DROP TABLE conversations; --",
        messages=(
            Message(role="user", content="q\0\u2028\U0001f600"),
            Message(role="assistant", content="", reasoning="why", tool_calls='[{"name":"f"}]', complete=False),
        ),
        split="train",
        file="o'brien;--.jsonl",
        line=3,
        tools='[{"name":"f"}]',
    ),
    Conversation(
        conversation_id="07",
        messages=(Message(role="user", content="2024-05-01"), Message(role="assistant", content="a")),
        split="validation",
        file="b.jsonl",
        line=1,
    ),
]
SOURCES = ("o'brien;--.jsonl", "b.jsonl")
REJECTED = [
    RejectedRow(file="b.jsonl", line=9, byte_offset=2**40, conversation_id=None, reason="bad_id", excerpt="x'\0"),
    RejectedRow(file="b.jsonl", line=2, byte_offset=7, conversation_id="y", reason="bad_role", excerpt=""),
]
INGESTION = Ingestion(
    fingerprint="f1",
    accepted=2,
    rejected=2,
    exact_duplicates=0,
    num_train=1,
    num_validation=1,
    sources=(
        SourceReport(file=SOURCES[0], sha256="0", accepted=1, rejected=0, exact_duplicates=0, error=None),
        SourceReport(file=SOURCES[1], sha256="0", accepted=1, rejected=2, exact_duplicates=0, error=None),
    ),
    by_reason={"bad_id": 1, "bad_role": 1},
)
EMPTY = Ingestion(
    fingerprint="f0",
    accepted=0,
    rejected=0,
    exact_duplicates=0,
    num_train=0,
    num_validation=0,
    sources=(SourceReport(file="c.json", sha256="0", accepted=0, rejected=0, exact_duplicates=0, error="broken"),),
    by_reason={},
)


def candidate(conversation: Conversation, **changed: object) -> Candidate:
    given = Candidate(
        conversation_id=conversation.conversation_id,
        messages=conversation.messages,
        tools=conversation.tools,
        document=conversation.document,
        tokenised=conversation.tokenised,
        answered=True,
        line=conversation.line,
        byte_offset=0,
        excerpt="x",
        digest=b"\0" * 16,
        prompt_hash=0 if conversation.split == "validation" else 2,
        size=10,
    )
    return replace(given, **changed)  # type: ignore[arg-type]


def written(warehouse: Warehouse, fingerprint: str, read: Callable[[IngestionDraft], Ingestion]) -> Ingestion:
    """Once more, whether it is there or not."""
    return warehouse.database.write(lambda connection: read(IngestionDraft(connection, fingerprint)))


def write(
    warehouse: Warehouse,
    files: dict[str, list[Candidate | RejectedRow]],
    *,
    fingerprint: str = "f1",
    errors: dict[str, str] | None = None,
) -> Ingestion:
    """The verdicts of each file, staged one by one; held out is what has a prompt hash of 0."""

    def read(draft: IngestionDraft) -> Ingestion:
        for file, verdicts in files.items():
            for verdict in verdicts:
                draft.add([verdict])
            draft.end_file(file, sha256="0", error=(errors or {}).get(file))
        return draft.finish(lambda lowest, highest: 1)

    return written(warehouse, fingerprint, read)


def save(warehouse: Warehouse) -> None:
    files = {file: [candidate(c) for c in CONVERSATIONS if c.file == file] for file in SOURCES}
    assert (
        write(warehouse, {SOURCES[0]: [*files[SOURCES[0]]], SOURCES[1]: [*files[SOURCES[1]], *REJECTED]}) == INGESTION
    )


def save_empty(warehouse: Warehouse) -> None:
    files: dict[str, list[Candidate | RejectedRow]] = {"c.json": [candidate(CONVERSATIONS[0]), REJECTED[0]]}
    assert write(warehouse, files, fingerprint="f0", errors={"c.json": "broken"}) == EMPTY


PLAN = RunPlan(
    snapshot="s",
    spec=BatchingSpec(strategy="bucket", token_budget=64, slots_per_step=2, boundaries=(8, 64)),
    epochs=tuple(
        EpochSummary(
            epoch=epoch,
            num_steps=steps,
            num_micro_batches=2 * steps - 1,
            num_fillers=1,
            num_samples=9,
            num_dropped=0,
            real_tokens=90,
            padded_tokens=100,
            supervised_tokens=40,
            cost=1 / 3,
            digest=f"d{epoch}",
        )
        for epoch, steps in enumerate((4, 3))
    ),
)


def sequences(lengths: list[tuple[int, int]], validation: list[tuple[int, int]]) -> pa.Table:
    rows = lengths + validation
    return pa.table(
        {
            "sample_id": pa.array(range(len(rows)), pa.int32()),
            "conversation_id": [f"c{n}" for n in range(len(rows))],
            "split": ["train"] * len(lengths) + ["validation"] * len(validation),
            "shard": ["tokens-00000.arrow"] * len(rows),
            "row": pa.array(range(len(rows)), pa.int64()),
            "num_tokens": [tokens for tokens, _ in rows],
            "num_supervised": [supervised for _, supervised in rows],
        }
    )


def dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, in an order of its own."""
    with duckdb.connect(str(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        return {name: sorted(connection.table(name).fetchall(), key=repr) for name in names}


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "storage" / "warehouse.duckdb", wait_seconds=0.5)


def path_of(warehouse: Warehouse) -> Path:
    return warehouse.database.path


def test_what_is_saved_is_found(warehouse: Warehouse) -> None:
    assert warehouse.find_ingestion("f1") is None
    assert warehouse.rejected_rows() == []
    save_empty(warehouse)
    save(warehouse)
    assert warehouse.find_ingestion("f1") == INGESTION
    assert warehouse.find_ingestion("f0") == EMPTY
    assert warehouse.conversations("f1") == CONVERSATIONS
    assert warehouse.conversations("f0") == []
    assert warehouse.rejected_rows("f1") == warehouse.rejected_rows() == REJECTED
    assert warehouse.rejected_rows("f0") == []


def test_the_latest_ingestion_is_the_one_saved_last(warehouse: Warehouse) -> None:
    save(warehouse)
    save_empty(warehouse)
    assert warehouse.rejected_rows() == []
    save(warehouse)
    assert warehouse.rejected_rows() == REJECTED


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10, deadline=None)
@given(texts=st.lists(st.text(), min_size=1, max_size=5))
def test_text_comes_back_character_for_character(warehouse: Warehouse, texts: list[str]) -> None:
    # Ids are written as they are, messages as JSON: neither may trim, normalise or convert.
    plain = CONVERSATIONS[1]
    said = [
        replace(plain, conversation_id=f"{n}{text}", messages=(Message(role="user", content=text), *plain.messages))
        for n, text in enumerate(texts)
    ]
    write(warehouse, {"b.jsonl": [candidate(c) for c in said]})
    assert warehouse.conversations("f1") == sorted(said, key=lambda c: c.conversation_id)
    warehouse.save_answers("t", repr(texts), [(text, text, True) for text in texts])
    assert warehouse.find_answers("t", repr(texts), texts) == {text: (text, True) for text in texts}


def test_nothing_is_never_read_as_no_rows(warehouse: Warehouse) -> None:
    with pytest.raises(Refused, match="not recorded"):
        warehouse.conversations("f1")
    with pytest.raises(Refused, match="not recorded"):
        warehouse.rejected_rows("f1")
    with pytest.raises(Refused, match="no training sequences"):
        warehouse.sequence_lengths("s")
    with pytest.raises(Refused, match="no training sequences"):
        warehouse.histogram("s")
    save(warehouse)
    with warehouse.database.transaction() as connection:
        connection.execute("DELETE FROM conversations WHERE ordinal = 1")
    with pytest.raises(Refused, match="1 of 2 conversations"):
        warehouse.conversations("f1")
    save(warehouse)
    with warehouse.database.transaction() as connection:
        connection.execute("DELETE FROM conversations WHERE ordinal = 0")
    with pytest.raises(Refused, match="0 of 2 conversations"):
        warehouse.conversations("f1")


def test_of_one_id_the_first_row_counts_whatever_file_it_is_in(warehouse: Warehouse) -> None:
    plain = CONVERSATIONS[1]
    other = candidate(plain, digest=b"\1" * 16, line=5, excerpt="other")
    ingestion = write(
        warehouse,
        {"broken": [candidate(plain, line=9)], "a": [candidate(plain, line=2)], "b": [candidate(plain), other]},
        errors={"broken": "torn"},
    )
    assert [(s.accepted, s.rejected, s.exact_duplicates) for s in ingestion.sources] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 1),
    ]
    assert [(c.file, c.line) for c in warehouse.conversations("f1")] == [("a", 2)]
    [row] = warehouse.rejected_rows("f1")
    assert (row.reason, row.line, row.excerpt, row.file) == ("duplicate_id_conflict", 5, "other", "b")


def test_documents_and_tokens_come_back_as_they_were(warehouse: Warehouse) -> None:
    tokenised = PreTokenised(token_ids=(3, 2**31 - 1, 0), loss_mask=(False, True, True))
    rows = [
        Conversation(conversation_id="d", document=" a\0b\r\n", split="train", file="b", line=1),
        Conversation(conversation_id="t", tokenised=tokenised, split="validation", file="b", line=2),
    ]
    write(warehouse, {"b": [candidate(row) for row in rows]})
    assert warehouse.conversations("f1") == rows


def test_prompts_are_kept_apart_until_a_conversation_has_their_id(warehouse: Warehouse) -> None:
    refused = replace(REJECTED[0], reason="prompt_without_answer")
    one, two = (candidate(CONVERSATIONS[1], answered=False, conversation_id=i, prompt_hash=0) for i in "12")
    ingestion = write(warehouse, {"b": [refused, one, refused, two, refused, one, candidate(CONVERSATIONS[1])]})
    assert (ingestion.accepted, ingestion.rejected, ingestion.num_prompts) == (1, 3, 2)
    assert [c.conversation_id for batch in warehouse.stream_prompts("f1") for c in batch] == ["1", "2"]
    ingestion = write(warehouse, {"b": [refused, one, candidate(CONVERSATIONS[1], conversation_id="1")]})
    assert (ingestion.num_prompts, list(warehouse.stream_prompts("f1"))) == (0, [])


def test_batches_are_bounded_in_rows_and_in_size(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_pipeline.store.read_back._BATCH_ROWS", 4096)
    plain = CONVERSATIONS[1]
    sizes = [10, 20 * 2**20, 20 * 2**20, 40 * 2**20, 1, 1]
    write(warehouse, {"b": [candidate(plain, conversation_id=str(n), size=size) for n, size in enumerate(sizes)]})
    # The first are few, so that work on them can begin.
    assert [len(batch) for batch in warehouse.stream_conversations("f1")] == [1, 1, 1, 1, 2]
    many = [candidate(plain, conversation_id=f"{n:05}") for n in range(5000)]
    written(warehouse, "f2", lambda draft: _finished(draft, many))
    batches = list(warehouse.stream_conversations("f2"))
    # Read in two, 2,048 and the rest, and given on in parts.
    assert [len(batch) for batch in batches] == [512] * 8 + [512, 392]
    assert [c.conversation_id for batch in batches for c in batch] == [c.conversation_id for c in many]


@pytest.mark.parametrize("part_size", [1, 35, 200])
def test_texts_dealt_to_parts_come_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_size: int
) -> None:
    random = np.random.default_rng(0)
    plain, ids = CONVERSATIONS[1], [str(n) for n in random.permutation(60)]
    rows = [
        candidate(
            plain,
            conversation_id=name,
            size=int(random.integers(1, 40)),
            prompt_hash=int(random.integers(0, 3)),
            document=f"text of {name}",
        )
        for name in [*ids, *ids[:7]]
    ]

    def saved(folder: str) -> dict[str, list[tuple[object, ...]]]:
        warehouse = Warehouse(tmp_path / folder / "warehouse.duckdb")
        write(warehouse, {"a": list(rows[:30]), "b": list(rows[30:])})
        with warehouse.database.connection() as connection:
            # As they lie in the file: batches are read by ranges of it.
            places = connection.execute("SELECT ordinal FROM conversations ORDER BY rowid").fetchall()
        assert places == [(place,) for place in range(60)]
        return dump(path_of(warehouse))

    at_once = saved("at once")
    monkeypatch.setattr("dflash_pipeline.store.placing.PART_SIZE", part_size)
    dealt = saved("dealt")
    assert dealt.keys() == at_once.keys()
    assert dealt["conversations"] == at_once["conversations"]
    assert len(dealt["conversations"]) == 60


def _finished(draft: IngestionDraft, verdicts: list[Candidate]) -> Ingestion:
    draft.add(verdicts)
    draft.end_file("b", sha256="0", error=None)
    return draft.finish(lambda lowest, highest: 0)


def test_a_sample_of_the_rejected_rows_shows_every_reason(warehouse: Warehouse) -> None:
    rows = [replace(REJECTED[0], line=n + 1) for n in range(5)] + [replace(REJECTED[1], line=6)]
    write(warehouse, {"b.jsonl": list(rows)})
    assert warehouse.rejections("f1") == [("b.jsonl", "bad_id", 5), ("b.jsonl", "bad_role", 1)]
    assert [row.line for row in warehouse.rejected_sample("f1", each=2, most=9)] == [1, 2, 6]
    assert [row.line for row in warehouse.rejected_sample("f1", each=2, most=2)] == [1, 2]


def test_answers_are_kept_by_target_and_settings(warehouse: Warehouse) -> None:
    warehouse.save_answers("t", "s", [("p", "first", True), ("q", "", False), ("p", "again", True)])
    warehouse.save_answers("t", "s", [("p", "later", False), ("r", "3", True)])
    warehouse.save_answers("t", "other", [("p", "other", True)])
    warehouse.save_answers("t", "s", [])
    assert warehouse.find_answers("t", "s", ["p", "q", "r", "p", "none"]) == {
        "p": ("first", True),
        "q": ("", False),
        "r": ("3", True),
    }
    assert warehouse.find_answers("t", "other", ["p", "q"]) == {"p": ("other", True)}
    assert warehouse.find_answers("u", "s", ["p"]) == {}
    assert warehouse.find_answers("t", "s", []) == {}


def test_a_reason_gives_way_to_an_answer_or_a_newer_reason(warehouse: Warehouse) -> None:
    warehouse.save_answers("t", "s", [], [("p", "no_reply"), ("q", "no_reply"), ("r", "refused")])
    warehouse.save_answers("t", "other", [], [("p", "rejected")])
    warehouse.save_answers("t", "s", [("p", "here", True)], [("q", "malformed")])
    assert warehouse.find_unanswered("t", "s", ["p", "q", "r", "none"]) == {"q": "malformed", "r": "refused"}
    assert warehouse.find_unanswered("t", "other", ["p", "q"]) == {"p": "rejected"}
    assert warehouse.find_answers("t", "s", ["p", "q", "r"]) == {"p": ("here", True)}


def test_an_older_file_gets_the_table_of_reasons_and_keeps_its_answers(warehouse: Warehouse) -> None:
    warehouse.save_answers("t", "s", [("p", "x", True)])
    with warehouse.database.transaction() as connection:
        connection.execute("DROP TABLE unanswered")
    assert warehouse.find_unanswered("t", "s", ["p"]) == {}
    warehouse.save_answers("t", "s", [], [("q", "refused")])
    assert warehouse.find_unanswered("t", "s", ["p", "q"]) == {"q": "refused"}
    assert warehouse.find_answers("t", "s", ["p"]) == {"p": ("x", True)}


def test_lengths_and_histogram_are_of_the_training_side(warehouse: Warehouse) -> None:
    warehouse.save_sequences("other", sequences([(99, 9)], []))
    table = sequences([(7, 2), (3, 1), (7, 4), (5, 5)], [(3, 3), (50, 1)])
    warehouse.save_sequences("s", table.take([3, 1, 5, 0, 2, 4]))
    lengths = warehouse.sequence_lengths("s")
    assert lengths.to_pydict() == {
        "sample_id": [0, 1, 2, 3],
        "num_tokens": [7, 3, 7, 5],
        "num_supervised": [2, 1, 4, 5],
    }
    histogram = warehouse.histogram("s")
    assert (histogram.lengths, histogram.counts) == ((3, 5, 7), (1, 1, 2))
    assert histogram.num_supervised_tokens == 12
    assert dump(path_of(warehouse))["length_histogram"] == [("s", 3, 1), ("s", 5, 1), ("s", 7, 2)]


def test_sequences_must_fit(warehouse: Warehouse) -> None:
    good = sequences([(7, 2), (3, 1)], [])
    broken = [
        good.drop_columns(["shard"]),
        good.set_column(0, "sample_id", pa.array([0, 0])),
        good.set_column(0, "sample_id", pa.array([1, 2])),
        good.set_column(5, "num_tokens", pa.array([7.5, 3.0])),
    ]
    for table in broken:
        with pytest.raises(ContractBroken, match="sequences of snapshot s"):
            warehouse.save_sequences("s", table)


def save_everything(warehouse: Warehouse) -> None:
    save(warehouse)
    warehouse.save_answers("t", "s", [("p", "x", True)], [("q", "refused")])
    warehouse.save_sequences("s", sequences([(7, 2), (3, 1)], [(4, 1)]))
    warehouse.histogram("s")
    warehouse.save_boundaries("s", fingerprint="b", record=PLAN.spec)
    warehouse.save_plan(PLAN, plans=path_of(warehouse).parent / "plans")
    attempt = Attempt(number=1, num_ranks=2, first_step=0, status="running", last_step=0)
    warehouse.save_run(RunRecord(run="r", plan=PLAN.fingerprint, target="t", total_steps=7, attempts=(attempt,)))
    spike = SpikeRecord(
        global_step=5,
        epoch=1,
        step=1,
        bucket=0,
        loss=math.inf,
        expected_loss=1.5,
        rule="point",
        severity="alert",
        sample_ids=(1, 2),
    )
    warehouse.save_spikes("r", [spike, replace(spike, global_step=6, loss=9.0)])


def test_every_save_may_be_repeated(warehouse: Warehouse) -> None:
    save_everything(warehouse)
    once = dump(path_of(warehouse))
    save_everything(warehouse)
    assert dump(path_of(warehouse)) == once
    assert min(len(rows) for rows in once.values()) >= 1
    assert [row[:3] for row in once["epochs"]] == [(PLAN.fingerprint, 0, 4), (PLAN.fingerprint, 1, 3)]
    assert once["runs"][0][:4] == ("r", PLAN.fingerprint, "running", None)
    assert once["spikes"] == [("r", 5, 1, 1, 0, math.inf, 1.5), ("r", 6, 1, 1, 0, 9.0, 1.5)]


def test_a_failed_transaction_leaves_nothing(warehouse: Warehouse) -> None:
    warehouse.save_answers("t", "s", [("p", "x", True)])
    before = dump(path_of(warehouse))

    def fail() -> None:
        with warehouse.database.transaction() as connection:
            connection.execute("DELETE FROM answers")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        fail()
    assert dump(path_of(warehouse)) == before


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_warehouse import save
from dflash_pipeline.store.warehouse import Warehouse
warehouse = Warehouse(Path(sys.argv[1]))
warehouse.save_answers("t", "s", [("p", "x", True)])
save(warehouse)
"""


def run_child(path: Path, fault: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(Path(__file__).parent)],
        env={**os.environ, "DFLASH_FAULT": fault},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("point", "kept"), [("before", False), ("after", True)])
def test_a_kill_around_the_commit_leaves_all_or_nothing(warehouse: Warehouse, point: str, kept: bool) -> None:
    child = run_child(path_of(warehouse), f"kill:warehouse.{point}-commit:2")
    assert child.returncode == -9, child.stderr
    assert warehouse.find_answers("t", "s", ["p"]) == {"p": ("x", True)}
    assert (warehouse.find_ingestion("f1") is not None) == kept
    assert not path_of(warehouse).with_name("warehouse.duckdb.wal").exists()
    save(warehouse)
    assert warehouse.conversations("f1") == CONVERSATIONS
    assert warehouse.rejected_rows() == REJECTED


def test_a_full_disk_at_the_commit_leaves_nothing_of_it(warehouse: Warehouse) -> None:
    child = run_child(path_of(warehouse), "enospc:2")
    assert "No space left" in child.stderr
    assert warehouse.find_answers("t", "s", ["p"]) == {"p": ("x", True)}
    assert warehouse.find_ingestion("f1") is None


def holder(path: Path, *, seconds: float) -> subprocess.Popen[str]:
    code = f"""
        import duckdb, sys, time
        held = duckdb.connect(sys.argv[1])
        print("held", flush=True)
        time.sleep({seconds})
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_held_database_is_waited_for(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "w.duckdb", wait_seconds=20)
    with holder(tmp_path / "w.duckdb", seconds=0.5):
        warehouse.save_answers("t", "s", [("p", "x", True)])
    assert warehouse.find_answers("t", "s", ["p"]) == {"p": ("x", True)}


def test_a_holder_that_stays_is_named(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "w.duckdb", wait_seconds=0.3)
    with holder(tmp_path / "w.duckdb", seconds=60) as process:
        started = time.monotonic()
        with pytest.raises(Refused, match=f"process {process.pid} held the database for 0.3 s"):
            warehouse.find_ingestion("f1")
        assert 0.3 <= time.monotonic() - started < 3
        process.kill()


@pytest.mark.parametrize("content", [b"", b"not a database", b"\0" * 20_000])
def test_what_is_not_a_database_is_set_aside(
    warehouse: Warehouse, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(warehouse)
    path.parent.mkdir()
    path.write_bytes(content)
    path.with_name("warehouse.duckdb.wal").write_bytes(b"left over")
    with caplog.at_level(logging.WARNING):
        save(warehouse)
    assert warehouse.conversations("f1") == CONVERSATIONS
    assert path.with_name("warehouse.duckdb.damaged-1").read_bytes() == content
    assert path.with_name("warehouse.duckdb.wal.damaged-1").read_bytes() == b"left over"
    assert "warehouse.duckdb.damaged-1" in caplog.text


def test_one_flipped_bit_is_found_and_never_gives_other_rows(warehouse: Warehouse) -> None:
    save_everything(warehouse)
    path = path_of(warehouse)
    whole = path.read_bytes()
    rng = random.Random(0)
    set_aside = 0
    for _ in range(16):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        for leftover in path.parent.iterdir():
            leftover.unlink()
        path.write_bytes(damaged)
        try:
            assert warehouse.conversations("f1") == CONVERSATIONS
        except Refused:
            assert path.with_name("warehouse.duckdb.damaged-1").read_bytes() == damaged
            set_aside += 1
        save(warehouse)
        assert warehouse.conversations("f1") == CONVERSATIONS
    assert 0 < set_aside < 16


@pytest.mark.parametrize("place", [0.3, 0.9])
def test_a_damaged_write_ahead_log_is_set_aside(warehouse: Warehouse, place: float) -> None:
    """Ours has nothing in it; a process of an older version that was killed left one that has."""
    save(warehouse)
    path = path_of(warehouse)
    log = path.with_name("warehouse.duckdb.wal")
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO answers SELECT 't', 's', i, repeat('x', 100), true FROM range(1000) t(i)")
        whole, data = path.read_bytes(), bytearray(log.read_bytes())
    path.write_bytes(whole)
    data[int(place * len(data))] ^= 1
    log.write_bytes(data)
    assert warehouse.find_ingestion("f1") is None
    assert path.with_name("warehouse.duckdb.wal.damaged-1").read_bytes() == data
    assert path.with_name("warehouse.duckdb.damaged-1").exists()


def test_tables_of_another_version_are_refused(warehouse: Warehouse) -> None:
    with warehouse.database.transaction() as connection:
        connection.execute("UPDATE schema_version SET version = 999")
    with pytest.raises(Refused, match="version 999"):
        warehouse.find_ingestion("f1")


def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be opened"):
        Warehouse(tmp_path).find_ingestion("f1")


def test_the_warehouse_reads_no_file_of_its_own_accord(warehouse: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with warehouse.database.connection() as connection, pytest.raises(duckdb.PermissionException):
        connection.execute("FROM read_csv(?)", [str(tmp_path / "secret.csv")])


def test_sql_is_never_put_together() -> None:
    folder = Path(dflash_pipeline.store.__file__).parent
    checked = 0
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr in ("execute", "executemany", "sql", "query"):
                checked += 1
                assert isinstance(node.args[0], ast.Constant | ast.Name), f"{path.name} line {node.lineno}"
            assert not (isinstance(node.args[0], ast.JoinedStr) and node.func.attr == "execute")
    assert checked > 20


def test_a_long_query_prints_nothing(tmp_path, capfd):
    """DuckDB would draw a bar on standard output, into the middle of an answer in JSON."""
    with Database(tmp_path / "warehouse.duckdb", wait_seconds=1).connection() as connection:
        connection.execute("SET progress_bar_time = 1")
        query = "SELECT count(*) FROM range(20000000) a(i), range(20) b(j) WHERE (i * j) % 7 = 3"
        connection.execute(query).fetchall()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("number", "openings"), [(0, 1), (3, 1), (4, 2), (5, 2), (12, 2), (13, 3)])
def test_the_file_is_opened_once_for_a_batch_and_not_again_behind_the_last(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, number: int, openings: int
) -> None:
    monkeypatch.setattr("dflash_pipeline.store.read_back._FIRST_ROWS", 4)
    monkeypatch.setattr("dflash_pipeline.store.read_back._BATCH_ROWS", 9)
    rows = [candidate(CONVERSATIONS[1], conversation_id=f"{n:02}") for n in range(number)]
    written(warehouse, "f1", lambda draft: _finished(draft, rows))
    opened = 0
    connection = Database.connection

    def counted(database: Database) -> AbstractContextManager[Connection]:
        nonlocal opened
        opened += 1
        return connection(database)

    monkeypatch.setattr(Database, "connection", counted)
    ids = [c.conversation_id for batch in warehouse.stream_conversations("f1") for c in batch]
    assert ids == [f"{n:02}" for n in range(number)]
    assert opened == openings


def test_an_ingestion_that_is_there_is_found_and_not_written_again(warehouse: Warehouse) -> None:
    rows = [candidate(CONVERSATIONS[1], conversation_id="a")]
    made, reused = warehouse.find_or_write_ingestion("f1", lambda draft: _finished(draft, rows))
    assert not reused

    def never(draft: IngestionDraft) -> Ingestion:
        raise AssertionError("it is there")

    assert warehouse.find_or_write_ingestion("f1", never) == (made, True)
    path_of(warehouse).write_bytes(b"damaged")
    assert warehouse.find_or_write_ingestion("f1", lambda draft: _finished(draft, rows)) == (made, False)
