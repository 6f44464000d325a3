"""`dflash exclude`: known conversations only, once each, from a run's events, and out of the next snapshot."""

from __future__ import annotations

import json
from multiprocessing.pool import ThreadPool

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.store.exclusions import add_exclusions, read_exclusions, remove_exclusions
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.training.event_log import EventLog
from tests.stages.spiky_run import conversations, snapshot, spiky_run, ten_rows
from tests.training.test_event_log import SPIKE


@pytest.fixture
def recipe(tmp_path):
    return ten_rows(tmp_path)


@pytest.fixture
def storage(tmp_path):
    return Storage(root=tmp_path / "storage")


def test_what_is_excluded_is_in_no_later_snapshot(dflash, recipe, storage):
    before = snapshot(recipe, storage)
    found = dflash("exclude", "row-3", "row-5", "row-3", "--why", "cut", "--storage", storage.root, "--json").document
    assert found["excluded"] == ["row-3", "row-5"]
    assert found["num_listed"] == 2
    after = snapshot(recipe, storage)
    assert after.fingerprint != before.fingerprint
    assert set(conversations(storage, before)) - set(conversations(storage, after)) == {"row-3", "row-5"}
    assert dict(after.dropped)["excluded"] == 2
    lines = storage.exclusions.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"id": "row-3", "why": "cut"}, {"id": "row-5", "why": "cut"}]

    again = dflash("exclude", "row-5", "row-6", "--storage", storage.root, "--json").document
    assert (again["excluded"], again["already"], again["num_listed"]) == (["row-6"], ["row-5"], 3)
    back = dflash("exclude", "--undo", "row-3", "row-5", "row-6", "--storage", storage.root, "--json").document
    assert (back["restored"], back["num_listed"]) == (["row-3", "row-5", "row-6"], 0)
    assert snapshot(recipe, storage).fingerprint == before.fingerprint


def test_unknown_ids_are_refused_with_what_they_may_have_meant(dflash, recipe, storage):
    make_conversations(load_recipe(recipe), storage)
    ran = dflash("exclude", "row-1", "rwo-3", "--storage", storage.root, "--json")
    assert ran.code == 2
    assert "'rwo-3'" in ran.document["error"]["what"]
    assert "row-3" in ran.document["error"]["fix"]
    assert not storage.exclusions.exists()

    dflash("exclude", "row-1", "--storage", storage.root)
    ran = dflash("exclude", "--undo", "row-2", "--storage", storage.root, "--json")
    assert (ran.code, read_exclusions(storage.exclusions)) == (2, {"row-1"})
    assert "row-1" in ran.document["error"]["fix"]


@pytest.fixture
def run(recipe, storage):
    """Conversation ids of its samples, by sample id. Its spikes in two epochs share samples 2 and 4."""
    return spiky_run(recipe, storage)


def test_the_samples_that_spikes_of_a_run_are_due_to(dflash, run, storage):
    found = dflash("exclude", "--from-run", "r1", "--storage", storage.root, "--json").document
    assert found["excluded"] == [run[2], run[4]]
    assert "step" in json.loads(storage.exclusions.read_text(encoding="utf-8").splitlines()[0])["why"]


def test_samples_of_a_run_by_number(dflash, run, storage):
    found = dflash("exclude", "7", "--from-run", "r1", "--storage", storage.root, "--json").document
    assert found["excluded"] == [run[7]]
    for wrong in ("70", "seven", "-1"):
        assert dflash("exclude", "--from-run", "r1", "--storage", storage.root, "--json", "--", wrong).code == 2


def test_a_run_without_events_of_data(dflash, storage):
    log = EventLog(storage.runs / "r2" / "events.jsonl")
    log.tell(SPIKE)
    for run in ("r2", "nosuch", "../r2"):
        ran = dflash("exclude", "--from-run", run, "--storage", storage.root, "--json")
        assert (ran.code, ran.document["error"]["fix"] != "") == (2, True)


@pytest.mark.parametrize(
    "arguments", [[], ["--undo"], ["a", "--undo", "--why", "x"], ["--undo", "--from-run", "r1"], ["a"]]
)
def test_nothing_to_do(dflash, tmp_path, arguments):
    ran = dflash("exclude", *arguments, "--storage", tmp_path / "nowhere", "--json")
    assert ran.code == 2
    assert not (tmp_path / "nowhere").exists()


def test_text_for_a_person(dflash, recipe, storage):
    make_conversations(load_recipe(recipe), storage)
    ran = dflash("exclude", "row-1", "--storage", storage.root)
    assert ran.out == (
        f"excluded row-1\n1 conversations are excluded, listed in {storage.exclusions}; the next run leaves them out\n"
    )


IDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), max_size=6)


@given(st.lists(st.tuples(st.booleans(), IDS), max_size=6))
def test_the_list_is_a_set_that_keeps_the_lines_of_others(tmp_path_factory, changes):
    path = tmp_path_factory.mktemp("list") / "exclusions.jsonl"
    by_hand = '{"why": "by hand",  "id": "by\\u0020hand"}'
    path.write_text(by_hand + "\n", encoding="utf-8")
    expected = {"by hand"}
    for adding, ids in changes:
        if adding:
            assert set(add_exclusions(path, dict.fromkeys(ids, ""))) == set(ids) - expected
            expected |= set(ids)
        else:
            assert set(remove_exclusions(path, ids)) == set(ids) & expected
            expected -= set(ids)
        assert read_exclusions(path) == expected
    lines = path.read_text(encoding="utf-8").split("\n")
    assert len([line for line in lines if line]) == len(expected)
    assert (by_hand in lines) == ("by hand" in expected)


def test_processes_that_exclude_at_once_lose_nothing(tmp_path):
    path = tmp_path / "exclusions.jsonl"
    with ThreadPool(4) as pool:
        pool.map(lambda n: add_exclusions(path, {f"id{n}": ""}), range(24))
    assert read_exclusions(path) == {f"id{n}" for n in range(24)}
