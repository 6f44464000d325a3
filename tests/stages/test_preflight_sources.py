"""What the first rows of a source tell: that there are none, that too many are rejected, what of them is supervised."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.sources import SourceFile
from dflash_pipeline.ingest.tokenise import TokenRule, tokeniser
from dflash_pipeline.stages.preflight import look_over
from dflash_pipeline.stages.preflight import subject as subject_module
from dflash_pipeline.stages.preflight.sample import Effort, SourceSample, sample_source
from dflash_pipeline.stages.preflight.sources import check_coverage
from dflash_pipeline.stages.preflight.subject import gather
from dflash_pipeline.store.layout import Storage
from tests.conftest import ROOT
from tests.stages.preflight_cases import ROOMY, TARGET, faults, only, recipe, with_rows


def chat(number: int, answer: str = "It is so.") -> dict[str, str]:
    return {"question": f"How about {number}?", "answer": answer}


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nosuch.jsonl", "no such file"),
        ("*.nothing", "no file has this name"),
        ("hollow", "no file of a known format"),
        ("odd.bin", "not a known format"),
        ("empty.jsonl", "no row"),
        ("torn.jsonl.gz", "damaged"),
        ("wide.json", "UTF-16"),
    ],
)
def test_a_source_that_gives_nothing(tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "odd.bin").write_bytes(b"\0\1\2")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abc"}\n' * 1000)[:-20])
    (tmp_path / "wide.json").write_bytes("[]".encode("utf-16"))
    good = with_rows(tmp_path, "good.jsonl", [chat(n) for n in range(9)])["sources"]
    fault = only(faults(tmp_path, data={"sources": [*good, {"path": path}]}))
    assert what in fault.what


def test_one_damaged_file_of_a_folder_costs_nothing_here(tmp_path: Path) -> None:
    """Ingestion takes the others, and the check of rejected rows warns of it."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "damaged.json").write_text("[")
    with_rows(tmp_path / "rows", "good.jsonl", [chat(n) for n in range(9)])
    assert faults(tmp_path, data={"sources": [{"path": "rows"}]}) == ()


@pytest.mark.parametrize(("bad", "refused"), [(5, False), (6, True)])
def test_rejected_rows_count_against_the_recipes_bound(tmp_path: Path, bad: int, refused: bool) -> None:
    rows: list[object] = [chat(n) for n in range(10 - bad)] + [{"question": n, "answer": "a"} for n in range(bad)]
    found = faults(tmp_path, data=with_rows(tmp_path, "rows.jsonl", rows) | {"rejection_block": 0.5})
    assert [fault.what for fault in found] == (
        ["6 of the first 10 rows are rejected (6 unsupported_content), more than 50%"] if refused else []
    )


@pytest.mark.parametrize(("answered", "refused"), [(True, False), (False, True)])
def test_prompts_are_lost_only_if_nobody_answers_them(tmp_path: Path, answered: bool, refused: bool) -> None:
    rows: list[object] = [chat(0), *({"question": f"Which is {n}?"} for n in range(9))]
    data = with_rows(tmp_path, "rows.jsonl", rows)
    found = faults(tmp_path, data=data, responses={"enabled": answered})
    assert [fault.what for fault in found] == (
        ["9 of the first 10 rows are rejected (9 prompt_without_answer), more than 50%"] if refused else []
    )


TOKENS = [5, 300, 301, 302, 303, 304]
PROMPTS = {"prompts": str(ROOT / "examples" / "conversations" / "gsm8k_test.jsonl")}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_ids": TOKENS, "loss_mask": [1] * 6}, "100 % of the tokens of its first 8 tokenised rows"),
        ({"input_ids": TOKENS, "loss_mask": [0] * 6}, "0 % of the tokens of its first rows are supervised (8 no_super"),
        (
            {"input_ids": [9999, 5, 6], "loss_mask": [0, 1, 1]},
            "0 % of the tokens of its first rows are supervised (8 u",
        ),
        ({"input_ids": TOKENS, "loss_mask": [0, 0, 1, 1, 1, 1]}, ""),
        ({"text": "Raw text is what it is, from its first word to its last."}, ""),
        (
            {"question": "Why?", "answer": "So. " * 300},
            "0 % of the tokens of its first rows are supervised (8 too_long",
        ),
    ],
)
def test_coverage_of_none_or_all(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    data = with_rows(tmp_path, "rows.jsonl", [row] * 8) | {"overlong": "drop"}
    found = faults(tmp_path, data=data, evaluation=PROMPTS)
    assert [fault.what.startswith(said) for fault in found] == ([True] if said else [])


def test_documents_alone_leave_nothing_to_measure_on(tmp_path: Path) -> None:
    data = with_rows(tmp_path, "rows.jsonl", [{"text": "Once upon a time."}] * 8)
    fault = only(faults(tmp_path, data=data))
    assert (fault.where, fault.what) == ("evaluation.prompts", "none is named, and no source holds chats to measure on")
    assert faults(tmp_path, data=data, evaluation=PROMPTS) == ()


def test_a_mask_token_that_the_data_hold(tmp_path: Path) -> None:
    data = with_rows(tmp_path, "rows.jsonl", [{"input_ids": [3, *TOKENS], "loss_mask": [0, 0, 0, 1, 1, 1, 1]}])
    fault = only(faults(tmp_path, data=data, evaluation=PROMPTS))
    assert "mask token 3, taken because none is set, is '<|mask|>', which occurs in" in fault.what
    assert fault.fix == "set mask_token_id to a token that does not occur in the data"


def test_a_template_that_supervises_prompts_too(tmp_path: Path) -> None:
    """No template is known that comes so far: it is refused when it is read."""
    storage = Storage(root=tmp_path / "storage")
    subject = gather(recipe(tmp_path), storage, num_ranks=2, machine=ROOMY, with_data=True)
    assert list(check_coverage(subject)) == []
    [sample] = subject.samples
    all_of_it = replace(sample.chats, num_supervised=sample.chats.num_tokens)
    [fault] = check_coverage(replace(subject, samples=(replace(sample, chats=all_of_it),)))
    assert fault.what == "100 % of the tokens of its first 32 chats are supervised, prompts too"


def test_of_many_rows_the_first_are_read_and_of_many_files_three(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for name in "abcde":
        with_rows(tmp_path / "rows", f"{name}.jsonl", [{**chat(n), "file": name} for n in range(5000)])
    many = recipe(tmp_path, data={"sources": [{"path": "rows"}], "max_rows": None})
    found = look_over(many, Storage(root=tmp_path / "storage"), machine=ROOMY)
    assert found.faults == ()
    assert any("192 rows of 3 files (of 5)" in line for line in found.seen)
    few = look_over(recipe(tmp_path), Storage(root=tmp_path / "storage"), machine=ROOMY)
    assert any("32 rows of 1 files (of 1)" in line for line in few.seen)


def test_long_rows_and_slow_files_are_not_read_far(tmp_path: Path) -> None:
    renderer = ChatRenderer(TARGET)
    tokenise = tokeniser(renderer, TokenRule(max_length=10**6))
    source = SourceFile(path=tmp_path / "rows.jsonl")
    enough = Effort(rows=64, seconds=60.0, characters=10_000)

    def sampled(rows: list[object], effort: Effort) -> SourceSample:
        with_rows(tmp_path, "rows.jsonl", rows)
        return sample_source(source, Limits(), effort, tokenise)

    rows: list[object] = [chat(n, "word " * 20) for n in range(40)]
    assert sampled(rows, enough).num_rows == 40
    assert sampled(rows, replace(enough, characters=1000)).num_rows in range(8, 11)
    assert sampled(rows, replace(enough, seconds=0.0)).num_rows == 1
    long = sampled([chat(0, "word " * 3000), chat(1)], enough)
    assert (long.num_rows, long.num_taken, long.chats.num_samples) == (1, 1, 0)
    document = sampled([{"text": "word " * 3000}], enough)
    whole = len(renderer.tokenizer("word " * 3000)["input_ids"])
    assert document.documents.num_tokens == pytest.approx(whole * 10_000 / 15_000, rel=0.01)


def test_many_sources_share_the_effort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_module, "_CHARACTERS", 6000)
    data = with_rows(tmp_path, "rows.jsonl", [chat(n, "word " * 20) for n in range(60)])
    one = look_over(recipe(tmp_path, data=data), Storage(root=tmp_path), machine=ROOMY)
    two = look_over(recipe(tmp_path, data={"sources": data["sources"] * 2}), Storage(root=tmp_path), machine=ROOMY)
    read = [int(line.partition("rows.jsonl: ")[2].split()[0]) for line in (*one.seen, *two.seen) if "jsonl" in line]
    assert read[0] in range(16, 20)
    assert read[1:] == [(read[0] + 1) // 2] * 2


@pytest.mark.parametrize("answered", [False, True])
def test_a_mapping_that_makes_no_conversation(tmp_path: Path, answered: bool) -> None:
    """Also where the target answers and every row would do as a prompt: ingestion refuses it."""
    source = with_rows(tmp_path, "rows.jsonl", [chat(n) for n in range(9)])["sources"][0]
    data = {"sources": [{**source, "map": {"user": "question"}}]}
    found = faults(tmp_path, data=data, responses={"enabled": answered})
    assert any("map names user" in fault.what for fault in found)


@pytest.mark.parametrize(("limit", "refused"), [(1e-6, True), (1.0, False)])
def test_features_that_are_to_be_kept(tmp_path: Path, limit: float, refused: bool) -> None:
    data = with_rows(tmp_path, "rows.jsonl", [chat(n) for n in range(40)])
    found = faults(tmp_path, data=data, training={"feature_cache_gib": limit})
    assert [fault.where for fault in found] == (["training.feature_cache_gib"] if refused else [])
