"""Snapshots from what changed: only that is tokenised, and the files are those of a clean build."""

import json
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.tokenise import Tokeniser
from dflash_pipeline.recipe import Data, Recipe, Responses, Source, Target
from dflash_pipeline.stages import tokens as module
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.snapshots import snapshot_differences
from dflash_pipeline.stages.tokens import make_snapshot, open_tokens
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.token_rows import TokenRows

TARGET = Path(__file__).parents[2] / "examples" / "target"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = Storage(root=folder / "storage")
        self.rows = {f"id{n}": f"What is {n} and {n}? It is {'so ' * (n % 11 + 2)}" for n in range(40)}

    def snapshot(self, *, storage: Storage | None = None, **data):
        """The snapshot of the rows as they are, in a storage."""
        path = self.folder / "rows.jsonl"
        lines = [
            {"id": key, "messages": [{"role": "user", "content": key}, {"role": "assistant", "content": text}]}
            for key, text in self.rows.items()
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        recipe = Recipe(
            name="bench",
            data=Data(sources=[Source(path=path)], validation_fraction=0.1, processes=1, **data),
            target=Target(path=TARGET),
            responses=Responses(enabled=False),
        )
        storage = storage or self.storage
        ingestion = make_conversations(recipe, storage).record
        return make_snapshot(recipe, storage, ingestion, make_responses(recipe, storage, ingestion).record)

    def files(self, storage, snapshot):
        folder = storage.snapshots / snapshot.fingerprint
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def tokenised(monkeypatch):
    """The ids of conversations that were rendered, as they are."""
    seen = []
    render = Tokeniser.render

    def spy(self, conversations):
        seen.extend(c.conversation_id for c in conversations)
        return render(self, conversations)

    monkeypatch.setattr(Tokeniser, "render", spy)
    return seen


def edit(rows):
    del rows["id3"]
    rows["id5"] = "Another answer."
    rows["new"] = "A row that was not there."


def test_only_what_changed_is_tokenised_and_the_bytes_are_a_clean_builds(bench, tokenised, tmp_path):
    first = bench.snapshot()
    assert sorted(tokenised) == sorted(bench.rows)
    tokenised.clear()
    edit(bench.rows)
    second = bench.snapshot()
    assert sorted(tokenised) == ["id5", "new"]
    assert second.record.fingerprint != first.record.fingerprint

    clean = Storage(root=tmp_path / "clean")
    again = bench.snapshot(storage=clean)
    assert again.record == second.record
    assert bench.files(clean, again.record) == bench.files(bench.storage, second.record)
    assert len(bench.files(clean, again.record)) > 4


@pytest.mark.parametrize("change", [{"max_length": 30}, {"supervise": "last"}, {"supervise_thinking": False}])
def test_another_rule_takes_nothing_over(bench, tokenised, change):
    first = bench.snapshot()
    tokenised.clear()
    assert bench.snapshot(**change).record.fingerprint != first.record.fingerprint
    assert len(tokenised) == 40
    tokenised.clear()
    bench.rows["new"] = "And back to the first rule."
    bench.snapshot()
    assert tokenised == ["new"], "looked for among all snapshots, not in the last alone"


def test_dropped_rows_are_known_as_well(bench, tokenised):
    bench.rows["long"] = "word " * 500
    made = bench.snapshot(max_length=60, overlong="drop")
    assert dict(made.record.dropped) == {"too_long": 1}
    tokenised.clear()
    del bench.rows["id0"]
    assert dict(bench.snapshot(max_length=60, overlong="drop").record.dropped) == {"too_long": 1}
    assert tokenised == []


def test_a_damaged_snapshot_is_no_source_of_tokens(bench, tokenised):
    first = bench.snapshot()
    folder = bench.storage.snapshots / first.record.fingerprint
    for name in (first.record.shards[0], "rows.arrow"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:600] + bytes([whole[600] ^ 1]) + whole[601:])
        tokenised.clear()
        bench.rows[f"after {name}"] = "New."
        made = bench.snapshot(storage=_beside(bench, folder, f"with-{name}"))
        assert len(tokenised) == len(bench.rows), "nothing of it was believed"
        assert made.record.num_samples == len(bench.rows)
        (folder / name).write_bytes(whole)


def _beside(bench, snapshot, name):
    storage = Storage(root=bench.folder / name)
    shutil.copytree(snapshot, storage.snapshots / snapshot.name)
    return storage


def test_who_is_taken_out_is_out_and_may_come_back(bench, tokenised):
    first = bench.snapshot()
    bench.storage.exclusions.write_text('{"id": "id7", "why": "wrong"}\n{"id": "nobody"}\n', encoding="utf-8")
    without = bench.snapshot()
    assert without.record.fingerprint != first.record.fingerprint
    assert dict(without.record.dropped) == {"excluded": 1}
    assert "id7" not in {open_tokens(bench.storage, without.record).conversation_id(i) for i in range(39)}
    shutil.rmtree(bench.storage.snapshots / first.record.fingerprint)
    bench.storage.exclusions.unlink()
    tokenised.clear()
    assert bench.snapshot().record == first.record
    assert tokenised == ["id7"]
    bench.storage.exclusions.write_text("id7\n", encoding="utf-8")
    with pytest.raises(Refused, match=r"exclusions\.jsonl line 1"):
        bench.snapshot()


def test_samples_that_were_cut_are_listed(bench):
    bench.rows["long"] = "word " * 500
    made = bench.snapshot(max_length=60)
    assert made.record.num_cut_samples == 1
    rows = TokenRows(bench.storage.snapshots / made.record.fingerprint).table()
    cut = rows.filter(pc.greater(rows["num_cut"], 0)).to_pylist()
    assert [(row["conversation_id"], row["num_tokens"]) for row in cut] == [("long", 60)]
    assert cut[0]["num_cut"] > 400


def test_killed_between_chunks_the_next_run_ends_with_the_same_files(bench, monkeypatch, tmp_path):
    def killed(name):
        raise KeyboardInterrupt(name)

    with monkeypatch.context() as patch:
        patch.setattr(module, "fault_point", killed)
        with pytest.raises(KeyboardInterrupt, match="after-chunk"):
            bench.snapshot()
    assert not any(bench.storage.snapshots.iterdir())
    made = bench.snapshot()
    clean = Storage(root=tmp_path / "clean")
    assert bench.files(clean, bench.snapshot(storage=clean).record) == bench.files(bench.storage, made.record)


def test_differences(bench):
    first = bench.snapshot()
    edit(bench.rows)
    bench.rows["new"] = "word " * 500
    second = bench.snapshot()
    names = (first.record.fingerprint, second.record.fingerprint)
    found = snapshot_differences(names[0][:6], names[1], bench.storage.root)
    assert {kind: found["rows"][kind] for kind in ("added", "removed", "changed")} == {
        "added": {"count": 1, "ids": ["new"]},
        "removed": {"count": 1, "ids": ["id3"]},
        "changed": {"count": 1, "ids": ["id5"]},
    }
    assert found["rows"]["unchanged"] == 38
    assert found["same_rule"]
    before, after = found["before"], found["after"]
    assert (
        before["lengths"]["longest"]
        < after["lengths"]["longest"]
        == max(open_tokens(bench.storage, second.record).lengths())
    )
    assert json.dumps(found)
    same = snapshot_differences(names[0], names[0], bench.storage.root)["rows"]
    assert [same[kind]["count"] for kind in ("added", "removed", "changed")] == [0, 0, 0]


def test_snapshots_that_cannot_be_compared(bench):
    first = bench.snapshot()
    name = first.record.fingerprint
    for wrong in ("", "nothing-like-it", name + "0"):
        with pytest.raises(Refused, match=r"there is no snapshot|begin with"):
            snapshot_differences(name, wrong, bench.storage.root)
    folder = bench.storage.snapshots / name
    (folder / "rows.arrow").unlink()
    assert folder_faults(folder)
    with pytest.raises(Refused, match=r"rows\.arrow is missing"):
        snapshot_differences(name, name, bench.storage.root)


def test_a_template_that_loses_most_rows_is_the_templates_fault(bench, tmp_path):
    # The probe's answer it prints once; most answers of the rows it prints twice.
    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if 'It is' in m.content %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    )
    path = tmp_path / "rows.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": f"It is {n}"}]}
        for n in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe(
        name="bench",
        data=Data(sources=[Source(path=path)], validation_fraction=0),
        target=Target(path=TARGET, chat_template=template),
        responses=Responses(enabled=False),
    )
    ingestion = make_conversations(recipe, bench.storage).record
    with pytest.raises(Refused, match="4 of 4 conversations the assistant's words cannot be found"):
        make_snapshot(recipe, bench.storage, ingestion, make_responses(recipe, bench.storage, ingestion).record)
