from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, Message, PreTokenised, SourceReport
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.ingest.ingestion import Rules, ingestion_fingerprint
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.sources import SourceFile, look_at
from tests.ingest.taking import RULES, take, take_all

RULES_WITH_SIDES = Rules(max_rows=None, validation_fraction=0.2, limits=Limits(row_bytes=10_000))
QA = {"user": "question", "assistant": "answer"}


def qa(number: int, answer: str | None = "a", **more: object) -> str:
    return json.dumps({"id": number, "question": f"q{number}", "answer": answer, **more})


def write(path: Path, *rows: str) -> SourceFile:
    path.write_text("\n".join(rows), encoding="utf-8")
    return SourceFile(path=path, mapping=QA)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8, deadline=None)
@given(
    files=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["a", "b", "", None])), max_size=15),
        min_size=1,
        max_size=3,
    )
)
def test_every_row_is_counted_once_and_ids_are_unique(tmp_path: Path, files: list[list[tuple[int, str]]]) -> None:
    sources = [write(tmp_path / f"{n}.jsonl", *(qa(i, answer) for i, answer in rows)) for n, rows in enumerate(files)]
    ingestion, conversations, rejected = take(*sources, rules=RULES_WITH_SIDES)
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
    _, conversations, _ = take(write(tmp_path / "a.jsonl", *rows), rules=RULES_WITH_SIDES)
    sides: dict[str, set[str]] = {}
    for c in conversations:
        sides.setdefault(c.messages[0].content, set()).add(c.split)
    assert all(len(side) == 1 for side in sides.values())
    assert {split for side in sides.values() for split in side} == {"train", "validation"}


def test_max_rows_counts_rows_of_each_file(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", qa(1), "broken", qa(2), qa(3))
    b = write(tmp_path / "b.json", "[" + ",".join(qa(n) for n in (4, 5, 6)) + "]")
    ingestion, conversations, _ = take(a, b, rules=replace(RULES, max_rows=2))
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
        look_at(SourceFile(path=tmp_path / "part*.jsonl"), Limits())


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
        ("empty", QA, "no file of a known format"),
        ("nul\0.jsonl", QA, "no such file"),
        ("binary.bin", {}, "not a known format"),
        ("*.none", QA, "no file has this name"),
        ("a**b", QA, "no file has this name|Invalid pattern"),
        ("good.jsonl", {"user": "question"}, "map names user"),
        ("good.jsonl", {"user": "question", "assistant": "answer", "text": "t"}, "map names assistant, text, user"),
    ],
)
def test_what_is_refused_before_any_work(tmp_path: Path, name: str, mapping: Mapping[str, str], what: str) -> None:
    good = write(tmp_path / "good.jsonl", qa(1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)))
    (tmp_path / "empty" / "rows.bin").write_text("a,b")
    bad = SourceFile(path=tmp_path / name, mapping=mapping)
    with pytest.raises(Refused, match=what):
        take(good, bad)


def test_the_fingerprint_follows_content_and_settings_not_places(tmp_path: Path) -> None:
    def fingerprint(source: SourceFile, rules: Rules = RULES) -> str:
        found = ingestion_fingerprint([look_at(source, rules.limits)], rules)
        assert found == take(source, rules=rules)[0].fingerprint
        return found

    one = write(tmp_path / "one.jsonl", qa(1), qa(2))
    same = write(tmp_path / "same.jsonl", qa(1), qa(2))
    others = [
        fingerprint(write(tmp_path / "edited.jsonl", qa(1), qa(2, "b"))),
        fingerprint(one, replace(RULES, max_rows=1)),
        fingerprint(one, replace(RULES, limits=Limits(row_bytes=9_999))),
        fingerprint(one, replace(RULES, validation_fraction=0.3)),
        fingerprint(replace(one, mapping={"user": "answer", "assistant": "question"})),
        fingerprint(replace(one, format="document", mapping={})),
    ]
    assert fingerprint(one) == fingerprint(same)
    assert len({fingerprint(one), *others}) == 7


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.jsonl", qa(1))

    def meddle(point: str) -> None:
        if point == "ingest.before-parse":
            with source.path.open("a") as file:
                file.write("\n" + qa(2))

    monkeypatch.setattr("dflash_pipeline.ingest.ingestion.fault_point", meddle)
    with pytest.raises(Refused, match="changed while it was read"):
        take(source)


def broken_files(folder: Path) -> list[Path]:
    """Files that cannot be taken as a whole, each with a good row before its fault."""
    packed = gzip.compress("\n".join(qa(n, "x" * 50) for n in range(1000)).encode(), mtime=0)
    zst = pa.Codec("zstd").compress("\n".join(qa(n, "y" * 50) for n in range(1000)).encode(), asbytes=True)
    checked = bytearray(packed)
    checked[-6] ^= 1
    contents = {
        "torn.jsonl.gz": packed[:-20],
        "checksum.jsonl.gz": bytes(checked),
        "torn.jsonl.zst": zst[:-5],
        "not_parquet.parquet": b"PAR1" + b"\0" * 100,
        "comma.json": b"[" + qa(7).encode() + b",]",
        "utf16.txt": "text".encode("utf-16"),
        "header.csv": b"question,question\n1,2\n",
        "array_in_gz.json": gzip.compress(b"[" + qa(8).encode() + b","),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def test_files_that_cannot_be_taken_cost_no_other_and_are_named(tmp_path: Path) -> None:
    broken = broken_files(tmp_path)
    good = write(tmp_path / "good.jsonl", qa(5000))
    ingestion, conversations, rejected = take(*broken, good)
    assert [c.conversation_id for c in conversations] == ["5000"]
    assert rejected == []
    for report, path in zip(ingestion.sources[:-1], broken, strict=True):
        assert (report.accepted, report.rejected, report.exact_duplicates) == (0, 0, 0)
        assert report.error is not None
        assert path.name in report.error


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, good = tmp_path / "locked.jsonl", write(tmp_path / "good.jsonl", qa(1))
    write(locked, qa(2))
    really = Path.open

    def guarded(self: Path, *given: object, **named: object) -> object:
        if self == locked:
            raise PermissionError(13, "Permission denied")
        return really(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", guarded)
    ingestion, conversations, _ = take(locked, good)
    assert len(conversations) == 1
    assert "Permission denied" in (ingestion.sources[0].error or "")


def test_prompts_without_an_answer_are_rejected_under_that_name_and_kept_to_be_answered(tmp_path: Path) -> None:
    rows = [
        {"id": "t", "turns": ["one", "two"]},
        {"id": "p", "prompt": "say", "system": "be brief"},
        {"id": "n", "question": "q", "answer": None},
        {"id": "i", "instruction": "add", "input": "1 2"},
        {"id": "m", "messages": [{"role": "user", "content": "hello"}]},
        {"id": "e", "prompt": " "},
    ]
    source = tmp_path / "prompts.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    ingestion, conversations, rejected, prompts = take_all([source], RULES)
    assert conversations == []
    assert [row.reason for row in rejected] == [*["prompt_without_answer"] * 4, "no_assistant", "prompt_without_answer"]
    assert ingestion.num_prompts == 5
    assert {p.conversation_id: [(m.role, m.content) for m in p.messages] for p in prompts} == {
        "t": [("user", "one"), ("assistant", ""), ("user", "two"), ("assistant", "")],
        "p": [("system", "be brief"), ("user", "say"), ("assistant", "")],
        "n": [("user", "q"), ("assistant", "")],
        "i": [("user", "add\n1 2"), ("assistant", "")],
        "m": [("user", "hello"), ("assistant", "")],
    }


def test_prompts_are_on_the_side_of_the_conversations_that_ask_the_same(tmp_path: Path) -> None:
    rows = [json.dumps({"question": f"q{n}", "answer": "a"}) for n in range(40)]
    asked = [json.dumps({"question": f"Q{n}"}) for n in range(60)]
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(rows + asked))
    _, conversations, _, prompts = take_all([source], RULES_WITH_SIDES)
    side = {c.messages[0].content: c.split for c in conversations}
    assert set(side.values()) == {"train", "validation"}
    known = [p for p in prompts if p.messages[0].content.lower() in side]
    assert len(known) == 40
    assert all(p.split == side[p.messages[0].content.lower()] for p in known)


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
        {"num_prompts": 2},
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
    tokens = PreTokenised(token_ids=(1,), loss_mask=(True,))
    for change in [{"document": "d"}, {"tokenised": tokens}, {"messages": (), "document": ""}]:
        with pytest.raises(ContractBroken):
            replace(good, **change)  # type: ignore[arg-type]
    assert replace(good, messages=(), document="d").document == "d"
    with pytest.raises(ContractBroken):
        replace(good, messages=(), document="d", tokenised=tokens)
    for ids, mask in [((), ()), ((1,), ()), ((-1,), (True,)), ((2**31,), (True,))]:
        with pytest.raises(ContractBroken, match="pre-tokenised row"):
            PreTokenised(token_ids=ids, loss_mask=mask)
    with pytest.raises(ContractBroken):
        replace(user, complete=False)
    with pytest.raises(ContractBroken):
        replace(user, role="wizard")  # type: ignore[arg-type]
