from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, Message, RejectedRow, SourceReport
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.ingest.ingestion import SourceFile, ingest, ingestion_fingerprint

LIMITS = {"max_rows": None, "max_row_bytes": 10_000, "validation_fraction": 0.2}
QA = {"user": "question", "assistant": "answer"}


def qa(number: int, answer: str = "a", **more: object) -> str:
    return json.dumps({"id": number, "question": f"q{number}", "answer": answer, **more})


def write(path: Path, *rows: str) -> SourceFile:
    path.write_text("\n".join(rows), encoding="utf-8")
    return SourceFile(path=path, mapping=QA)


def take(*sources: SourceFile, **changed: object) -> tuple[Ingestion, list[Conversation], list[RejectedRow]]:
    return ingest(sources, **{**LIMITS, **changed})  # type: ignore[arg-type]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    files=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["a", "b", "", None])), max_size=15),
        min_size=1,
        max_size=3,
    )
)
def test_every_row_is_counted_once_and_ids_are_unique(tmp_path: Path, files: list[list[tuple[int, str]]]) -> None:
    sources = [write(tmp_path / f"{n}.jsonl", *(qa(i, answer) for i, answer in rows)) for n, rows in enumerate(files)]
    ingestion, conversations, rejected = take(*sources)
    assert ingestion.num_rows == sum(len(rows) for rows in files)
    assert len(rejected) == ingestion.rejected
    assert len({c.conversation_id for c in conversations}) == len(conversations) == ingestion.accepted
    order = [(c.split != "train", c.conversation_id) for c in conversations]
    assert order == sorted(order)
    first = {}
    for i, answer in (row for rows in files for row in rows):
        if answer:
            first.setdefault(str(i), answer)
    assert {c.conversation_id: c.messages[-1].content for c in conversations} == first


def test_one_prompt_stays_on_one_side(tmp_path: Path) -> None:
    rows = [json.dumps({"question": f"Q  {n % 40}", "answer": f"a{n}"}) for n in range(200)]
    _, conversations, _ = take(write(tmp_path / "a.jsonl", *rows))
    sides: dict[str, set[str]] = {}
    for c in conversations:
        sides.setdefault(c.messages[0].content, set()).add(c.split)
    assert all(len(side) == 1 for side in sides.values())
    assert {split for side in sides.values() for split in side} == {"train", "validation"}


def test_max_rows_counts_rows_of_each_source(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", qa(1), "broken", qa(2), qa(3))
    b = write(tmp_path / "b.json", "[" + ",".join(qa(n) for n in (4, 5, 6)) + "]")
    ingestion, conversations, _ = take(a, b, max_rows=2)
    assert sorted(c.conversation_id for c in conversations) == ["1", "4", "5"]
    assert [(s.accepted, s.rejected) for s in ingestion.sources] == [(1, 1), (2, 0)]


def test_duplicates_are_found_across_files(tmp_path: Path) -> None:
    ingestion, conversations, rejected = take(
        write(tmp_path / "a.jsonl", qa(1)), write(tmp_path / "b.jsonl", qa(1), qa(1, "other"))
    )
    assert [Path(c.file).name for c in conversations] == ["a.jsonl"]
    assert ingestion.sources[1].exact_duplicates == 1
    assert [(row.reason, row.line) for row in rejected] == [("duplicate_id_conflict", 2)]


def test_a_broken_array_costs_no_other_file(tmp_path: Path) -> None:
    ingestion, conversations, _ = take(
        write(tmp_path / "a.json", "[" + qa(1) + ",]"),
        write(tmp_path / "b.json", qa(2)),
        write(tmp_path / "c.jsonl", qa(1)),
    )
    assert [s.accepted for s in ingestion.sources] == [0, 1, 1]
    assert ingestion.sources[0].error is not None
    assert [Path(c.file).name for c in conversations] == ["c.jsonl", "b.json"]


def test_names_are_literal(tmp_path: Path) -> None:
    write(tmp_path / "part1.jsonl", qa(1))
    named = write(tmp_path / "part[1].jsonl", qa(2))
    _, conversations, _ = take(named)
    assert [c.conversation_id for c in conversations] == ["2"]
    with pytest.raises(Refused, match="no such file"):
        take(SourceFile(path=tmp_path / "part*.jsonl"))


def test_files_are_named_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    source = write(tmp_path / "data" / "a.jsonl", qa(1))
    monkeypatch.chdir(tmp_path)
    assert take(source)[1][0].file == "data/a.jsonl"
    monkeypatch.chdir(tmp_path / "data")
    assert take(replace(source, path=Path("../data/a.jsonl")))[1][0].file == "../data/a.jsonl"


@pytest.mark.parametrize(
    ("name", "mapping", "what"),
    [
        ("missing.jsonl", QA, "no such file"),
        ("folder.jsonl", QA, "no such file"),
        ("nul\0.jsonl", QA, "no such file"),
        ("rows.csv", QA, "not a known format"),
        ("good.jsonl", {"user": "question"}, "map names user"),
    ],
)
def test_what_is_refused_before_any_work(tmp_path: Path, name: str, mapping: Mapping[str, str], what: str) -> None:
    good = write(tmp_path / "good.jsonl", qa(1))
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "rows.csv").write_text("a,b")
    bad = SourceFile(path=tmp_path / name, mapping=mapping)
    with pytest.raises(Refused, match=what):
        take(good, bad)
    with pytest.raises(Refused, match=what):
        ingestion_fingerprint([good, bad], **LIMITS)  # type: ignore[arg-type]


def test_the_fingerprint_follows_content_and_settings_not_places(tmp_path: Path) -> None:
    def fingerprint(source: SourceFile, **changed: object) -> str:
        found = ingestion_fingerprint([source], **{**LIMITS, **changed})  # type: ignore[arg-type]
        assert found == take(source, **changed)[0].fingerprint
        return found

    one = write(tmp_path / "one.jsonl", qa(1), qa(2))
    same = write(tmp_path / "same.jsonl", qa(1), qa(2))
    others = [
        fingerprint(write(tmp_path / "edited.jsonl", qa(1), qa(2, "b"))),
        fingerprint(one, max_rows=1),
        fingerprint(one, max_row_bytes=9_999),
        fingerprint(one, validation_fraction=0.3),
        fingerprint(replace(one, mapping={"user": "answer", "assistant": "question"})),
    ]
    assert fingerprint(one) == fingerprint(same)
    assert len({fingerprint(one), *others}) == 6


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.jsonl", qa(1))

    def meddle(point: str) -> None:
        if point == "ingest.before-parse":
            with source.path.open("a") as file:
                file.write("\n" + qa(2))

    monkeypatch.setattr("dflash_pipeline.ingest.ingestion.fault_point", meddle)
    with pytest.raises(Refused, match="changed while it was read"):
        take(source)


def test_contracts_add_up() -> None:
    report = SourceReport(file="a", sha256="0", accepted=2, rejected=1, exact_duplicates=1, error=None)
    whole = Ingestion(
        fingerprint="f",
        accepted=2,
        rejected=1,
        exact_duplicates=1,
        num_train=1,
        num_validation=1,
        sources=(report,),
        by_reason={"bad_id": 1},
    )
    assert whole.num_rows == 4
    broken: list[dict[str, object]] = [
        {"accepted": 3},
        {"rejected": 0},
        {"exact_duplicates": 0},
        {"num_train": 2},
        {"num_train": 3, "num_validation": -1},
        {"by_reason": {}},
        {"by_reason": {"whim": 1}},
    ]
    for change in broken:
        with pytest.raises(ContractBroken, match="ingestion f: "):
            replace(whole, **change)  # type: ignore[arg-type]
    with pytest.raises(ContractBroken):
        replace(report, error="broken array")


def test_a_conversation_is_complete_when_it_exists() -> None:
    user, answer = Message(role="user", content="q"), Message(role="assistant", content="a")
    good = Conversation(conversation_id="1", messages=(user, answer), split="train", file="a", line=1)
    for messages in [(), (user,), (answer, user), (Message(role="system", content="s"), answer)]:
        with pytest.raises(ContractBroken, match="turns"):
            replace(good, messages=messages)
    for change in [{"conversation_id": ""}, {"split": "test"}, {"line": 0}]:
        with pytest.raises(ContractBroken):
            replace(good, **change)  # type: ignore[arg-type]
    with pytest.raises(ContractBroken):
        replace(user, complete=False)
    with pytest.raises(ContractBroken):
        replace(user, role="wizard")  # type: ignore[arg-type]
