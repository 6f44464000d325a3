"""Weighted sources in a snapshot: who stands how often, and that nothing else is otherwise than without weights."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.ingest.tokenise import Tokeniser
from dflash_pipeline.ingest.weights import copies
from dflash_pipeline.model.answers import Answer
from dflash_pipeline.recipe import Batching, Data, Recipe, Responses, Source, Target, Training
from dflash_pipeline.stages import responses
from dflash_pipeline.stages.batching import make_boundaries, make_epochs, make_plan, make_statistics
from dflash_pipeline.stages.checks import check_every_sample_once, check_token_budget, check_totals
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.ingest_files import sample_facts
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.snapshots import snapshot_differences
from dflash_pipeline.stages.tokens import make_snapshot, num_conversations, open_tokens
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_epoch, plan_folder
from dflash_pipeline.store.token_rows import TokenRows
from dflash_pipeline.store.warehouse import Warehouse

TARGET = Path(__file__).parents[2] / "examples" / "target"


class Bench:
    """A folder of two files and a file beside it, with a weight each, and one storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = Storage(root=folder / "storage")
        (folder / "many").mkdir()
        self.write("many/a.jsonl", {f"a{n}": "so " * (n % 7 + 2) for n in range(20)})
        self.write("many/b.jsonl", {f"b{n}": "so " * (n % 5 + 2) for n in range(20)})
        self.write("one.jsonl", {f"c{n}": "so " * (n % 11 + 2) for n in range(40)})

    def write(self, name: str, rows: dict[str, str]) -> None:
        lines = [{"id": key, "question": f"What is {key}?", "answer": text} for key, text in rows.items()]
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def recipe(self, many: float = 1.0, one: float = 1.0, **data: Any) -> Recipe:
        sources = [Source(path=self.folder / "many", weight=many), Source(path=self.folder / "one.jsonl", weight=one)]
        return Recipe(
            name="bench",
            data=Data(sources=sources, validation_fraction=0.1, processes=1, **data),
            target=Target(path=TARGET),
            responses=Responses(enabled=False),
            batching=Batching(token_budget=256, slots_per_step=2, epochs=2),
            training=Training(num_ranks=2),
        )

    def snapshot(self, many: float = 1.0, one: float = 1.0, **data: Any) -> CorpusSnapshot:
        return self.make(self.recipe(many, one, **data), self.storage)

    def make(self, recipe: Recipe, storage: Storage) -> CorpusSnapshot:
        ingestion = make_conversations(recipe, storage).record
        return make_snapshot(recipe, storage, ingestion, make_responses(recipe, storage, ingestion).record).record

    def conversations(self, snapshot: CorpusSnapshot) -> list[Conversation]:
        return Warehouse(self.storage.warehouse).conversations(snapshot.ingestion)

    def ids(self, snapshot: CorpusSnapshot) -> tuple[list[str], list[str]]:
        """Conversation ids of the training samples, and of those held out, by sample id."""
        tokens = open_tokens(self.storage, snapshot)
        ids = [tokens.conversation_id(sample_id) for sample_id in range(tokens.num_samples)]
        return ids[: snapshot.num_train_samples], ids[snapshot.num_train_samples :]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of conversations that were rendered, as they are."""
    seen: list[str] = []
    render = Tokeniser.render

    def spy(self: Tokeniser, conversations: Sequence[Conversation]) -> Any:
        seen.extend(c.conversation_id for c in conversations)
        return render(self, conversations)

    monkeypatch.setattr(Tokeniser, "render", spy)
    return seen


def files(storage: Storage, snapshot: CorpusSnapshot) -> dict[str, bytes]:
    folder = storage.snapshots / snapshot.fingerprint
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_training_conversations_stand_by_weight_and_the_held_out_ones_once(bench):
    plain, weighted = bench.snapshot(), bench.snapshot(2.5, 0.5)
    train, validation = bench.ids(weighted)
    expected = {
        c.conversation_id: copies(c.conversation_id, 0.5 if c.file.endswith("one.jsonl") else 2.5)
        for c in bench.conversations(weighted)
        if c.split == "train"
    }
    # Copies side by side, in canonical order.
    assert [(key, len(list(group))) for key, group in groupby(train)] == [
        (key, expected[key]) for key in sorted(expected) if expected[key]
    ]
    assert {expected[key] for key in expected if key[0] == "c"} == {0, 1}
    assert {expected[key] for key in expected if key[0] != "c"} == {2, 3}
    assert validation == bench.ids(plain)[1]
    assert len(validation) > 4
    assert {key[0] for key in validation} == {"a", "b", "c"}


def test_totals_add_up(bench):
    plain, weighted = bench.snapshot(), bench.snapshot(2.5, 0.5)
    train, validation = bench.ids(weighted)
    left_out = {c.conversation_id for c in bench.conversations(weighted)} - {*train, *validation}
    assert dict(weighted.dropped) == {"weight": len(left_out)}
    assert num_conversations(bench.storage, weighted) == len({*train, *validation}) == 80 - len(left_out)
    assert (weighted.num_train_samples, weighted.num_validation_samples) == (len(train), len(validation))
    tokens = open_tokens(bench.storage, weighted)
    assert weighted.num_tokens == tokens.lengths().sum()
    assert weighted.num_supervised_tokens == tokens.num_supervised().sum()
    assert num_conversations(bench.storage, plain) == plain.num_samples == 80


def test_copies_have_the_tokens_of_the_plain_sample(bench):
    plain, weighted = bench.snapshot(), bench.snapshot(3, 1)
    [once, often] = (open_tokens(bench.storage, snapshot) for snapshot in (plain, weighted))
    [ids, copied] = (bench.ids(snapshot)[0] for snapshot in (plain, weighted))
    assert len(copied) > len(ids)
    for sample_id, key in enumerate(copied):
        np.testing.assert_array_equal(often.input_ids(sample_id), once.input_ids(ids.index(key)))
        assert often.supervised_spans(sample_id) == once.supervised_spans(ids.index(key))


def test_another_weight_tokenises_nothing_and_the_bytes_are_a_clean_builds(bench, tokenised, tmp_path):
    bench.snapshot()
    assert len(tokenised) == 80
    tokenised.clear()
    first, second = bench.snapshot(2.5, 0.5), bench.snapshot(0.75, 4.0)
    assert tokenised == []
    assert first.fingerprint != second.fingerprint
    for number, (snapshot, weights) in enumerate([(first, (2.5, 0.5)), (second, (0.75, 4.0))]):
        clean = Storage(root=tmp_path / f"clean-{number}")
        assert bench.make(bench.recipe(*weights), clean) == snapshot
        assert files(clean, snapshot) == files(bench.storage, snapshot)


def test_who_was_left_out_is_unknown_later(bench, tokenised):
    thin = bench.snapshot(1, 0.5)
    tokenised.clear()
    plain = bench.snapshot()
    assert sorted(tokenised) == sorted(set(bench.ids(plain)[0]) - set(bench.ids(thin)[0]))
    assert len(tokenised) > 10


def test_a_conversation_that_says_the_same_as_one_left_out_is_known(bench, tokenised):
    rows = [{"id": f"id{n}", "question": "What?", "answer": "That."} for n in range(10)]
    (bench.folder / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    thin = bench.snapshot(1, 0.5)
    # Of equal rows the first in canonical order is left out.
    assert {"id0", "id2", "id3"} & set(bench.ids(thin)[0]) == {"id3"}
    tokenised.clear()
    assert dict(bench.snapshot().dropped) == {}
    assert tokenised == []


def test_without_weights_a_snapshot_has_the_name_it_always_had(bench):
    made = bench.snapshot()
    assert made.fingerprint == fingerprint(
        ingestion=made.ingestion, answers="source", rule=made.rule, excluded=frozenset()
    )
    assert bench.snapshot(1, 1) == made
    assert len({bench.snapshot(*weights).fingerprint for weights in [(1, 2), (2, 1), (2, 2), (1, 1)]}) == 4


def test_a_snapshot_follows_the_weights_not_how_the_recipe_lists_files(bench):
    made = bench.snapshot(2.5, 0.5)
    recipe = bench.recipe()
    listed = [("many/a.jsonl", 2.5), ("many/b.jsonl", 2.5), ("one.jsonl", 0.5)]
    sources = [Source(path=bench.folder / name, weight=weight) for name, weight in listed]
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"sources": sources})})
    assert bench.make(recipe, bench.storage) == made


def test_exact_duplicates_count_with_the_first_source(bench):
    shutil.copy(bench.folder / "many" / "a.jsonl", bench.folder / "one.jsonl")
    made = bench.snapshot(3, 0.5)
    assert dict(made.dropped) == {}
    assert set(Counter(bench.ids(made)[0]).values()) == {3}


def test_who_is_excluded_is_so_whatever_the_weight(bench):
    weighted = bench.snapshot(2, 0.5)
    train, validation = bench.ids(weighted)
    never = next(key for n in range(40) if (key := f"c{n}") not in {*train, *validation})
    lines = [json.dumps({"id": key}) for key in (train[0], never)]
    bench.storage.exclusions.write_text("\n".join(lines), encoding="utf-8")
    made = bench.snapshot(2, 0.5)
    assert dict(made.dropped) == {"excluded": 2, "weight": dict(weighted.dropped)["weight"] - 1}
    assert made.num_samples == weighted.num_samples - 2
    assert num_conversations(bench.storage, made) + sum(dict(made.dropped).values()) == 80


def test_weights_that_leave_nothing_to_train_on_are_refused(bench):
    with pytest.raises(Refused, match=r"no training sample is left of 80 conversations \(\d+ weight\)") as refused:
        bench.snapshot(1e-6, 1e-6)
    assert "the weights of data.sources" in refused.value.fix


def test_samples_that_were_cut_count_with_their_copies(bench):
    bench.write("one.jsonl", {"long": "word " * 500, **{f"c{n}": "so" for n in range(9)}})
    made = bench.snapshot(1, 3, max_length=60)
    assert "long" in bench.ids(made)[0]
    assert made.num_cut_samples == 3
    [row] = [r for r in TokenRows(bench.storage.snapshots / made.fingerprint).table().to_pylist() if r["num_cut"]]
    assert bench.ids(made)[0][row["sample_id"] :][:4].count("long") == 3


def test_differences_show_what_a_weight_did(bench):
    plain, weighted = bench.snapshot(), bench.snapshot(2.5, 0.5)
    found = snapshot_differences(plain.fingerprint, weighted.fingerprint, bench.storage.root)
    assert [found["rows"][kind]["count"] for kind in ("added", "removed", "changed")] == [0, 0, 0]
    assert found["rows"]["unchanged"] == 80
    lengths = open_tokens(bench.storage, weighted).lengths()
    assert found["after"]["lengths"]["mean"] == lengths.mean() != found["before"]["lengths"]["mean"]
    assert found["after"]["num_samples"] == lengths.size
    assert found["after"]["dropped"] == dict(weighted.dropped)


def test_show_sample_names_all_copies(bench):
    made = bench.snapshot(3, 1)
    train, validation = bench.ids(made)
    key = next(k for k in train if k[0] == "a")
    found = sample_facts(key, bench.storage.root)
    assert found["sample_ids"] == [n for n, k in enumerate(train) if k == key]
    assert len(found["sample_ids"]) == 3
    assert found["sample_id"] == found["sample_ids"][0]
    assert sample_facts(validation[0], bench.storage.root)["sample_ids"] == [len(train)]


def test_a_plan_schedules_every_copy_once(bench):
    recipe, storage, snapshot = bench.recipe(2.5, 0.5), bench.storage, bench.snapshot(2.5, 0.5)
    boundaries = make_boundaries(recipe, storage, make_statistics(storage, snapshot))
    make_epochs(recipe, storage, snapshot, boundaries, range(2), tell=lambda planned, manifest: None)
    plan = make_plan(recipe, storage, snapshot, boundaries).record
    for check in (check_every_sample_once, check_token_budget, check_totals):
        finding = check(storage, snapshot, plan)
        assert finding.holds, finding.seen
    manifest = load_epoch(plan_folder(storage.plans, snapshot=snapshot.fingerprint, spec=plan.spec), 0)
    assert manifest.num_corpus_samples == snapshot.num_train_samples == len(bench.ids(snapshot)[0])


def test_names_in_the_warehouse_may_be_older_than_the_recipes(bench):
    """An ingestion that is handed over may name files otherwise than the warehouse, where it was read anew since."""
    recipe = bench.recipe(2.5, 0.5)
    old = make_conversations(recipe, bench.storage).record
    made = make_snapshot(recipe, bench.storage, old, make_responses(recipe, bench.storage, old).record).record
    bench.storage.warehouse.unlink()
    shutil.rmtree(bench.storage.snapshots)
    (bench.folder / "many").rename(bench.folder / "few")
    sources = [Source(path=bench.folder / "few", weight=2.5), recipe.data.sources[1]]
    moved = recipe.model_copy(update={"data": recipe.data.model_copy(update={"sources": sources})})
    assert make_conversations(moved, bench.storage).record != old
    again = make_snapshot(moved, bench.storage, old, make_responses(moved, bench.storage, old).record).record
    assert again == made


def test_prompts_that_the_target_answers_have_the_weight_of_their_source(bench, monkeypatch):
    def speak(model: object, tokenizer: object, prompts: Sequence[str], settings: object) -> list[Answer]:
        return [Answer(text=f"answer {len(prompt)}", complete=True) for prompt in prompts]

    monkeypatch.setattr(responses, "load_causal_lm", lambda path, *, device: None)
    monkeypatch.setattr(responses, "answer_prompts", speak)
    prompts = [{"id": f"c{n}", "question": f"What is c{n}?"} for n in range(20)]
    (bench.folder / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    recipe = bench.recipe(0.5, 2.0).model_copy(update={"responses": Responses(enabled=True)})
    made = bench.make(recipe, bench.storage)
    counted = Counter(bench.ids(made)[0])
    assert {counted[f"c{n}"] for n in range(20)} <= {0, 2}, "of those held out there is none here"
    assert sum(counted[f"c{n}"] == 2 for n in range(20)) > 10
    assert dict(made.dropped)["weight"] + num_conversations(bench.storage, made) == 60
