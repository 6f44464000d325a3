"""The file of decisions, and small files that join a hashed folder later."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store import folder_files
from dflash_pipeline.store.files import folder_faults, new_folder
from dflash_pipeline.store.folder_files import put_into_folder
from dflash_pipeline.store.promotions import append_decision, deciding, read_all_decisions, read_decisions
from tests.contracts.test_promotion import decided


def test_decisions_come_back_as_they_were(tmp_path):
    path = tmp_path / "deep" / "promotions.jsonl"
    lines = [decided("promoted", "a", "a"), replace(decided("kept", "b", None), recipe="other")]
    for line in lines:
        append_decision(path, line)
    assert read_all_decisions(path) == tuple(lines)
    assert read_decisions(path, "other") == (lines[1],)
    assert read_decisions(path, "nobody") == ()


def test_no_file_is_no_decision(tmp_path):
    assert read_all_decisions(tmp_path / "promotions.jsonl") == ()


def test_a_torn_line_never_came_about_and_the_next_takes_its_place(tmp_path):
    path = tmp_path / "promotions.jsonl"
    append_decision(path, decided("promoted", "a", "a"))
    with path.open("ab") as file:
        file.write(path.read_bytes()[:-20])
    assert len(read_all_decisions(path)) == 1
    append_decision(path, decided("kept", "b", "a"))
    assert [d.contender.run for d in read_all_decisions(path)] == ["a", "b"]


def test_a_damaged_line_is_refused_by_its_number(tmp_path):
    path = tmp_path / "promotions.jsonl"
    append_decision(path, decided("promoted", "a", "a"))
    path.write_bytes(path.read_bytes() + b'{"recipe": 1}\n')
    with pytest.raises(Refused, match="line 2"):
        read_all_decisions(path)


def test_one_decides_at_a_time(tmp_path):
    path = tmp_path / "promotions.jsonl"
    seen = []

    def other():
        with deciding(path):
            seen.append("other")

    with deciding(path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        seen.append("first")
    thread.join()
    assert seen == ["first", "other"]


def folder_of(tmp_path):
    with new_folder(tmp_path / "folder", act="export") as folder:
        (folder / "weights").write_bytes(os.urandom(8))
        (folder / "README.md").write_text("old")
    return tmp_path / "folder"


def test_files_join_a_folder_and_it_stays_whole(tmp_path):
    folder = folder_of(tmp_path)
    assert put_into_folder(folder, {"README.md": "new", "more.json": "{}"})
    assert (folder / "README.md").read_text() == "new"
    assert folder_faults(folder) == []
    assert {line.partition("  ")[2] for line in (folder / "sha256.txt").read_text().splitlines()} == {
        "README.md",
        "more.json",
        "weights",
    }
    assert not put_into_folder(folder, {"README.md": "new", "more.json": "{}"})
    (folder / "more.json").write_text("spoilt")
    assert folder_faults(folder) == ["more.json does not match its hash"]


def test_a_kill_between_any_two_writes_leaves_a_whole_folder(tmp_path, monkeypatch):
    written = folder_files.write_atomic
    for survived in range(4):
        (tmp_path / str(survived)).mkdir()
        folder, left = folder_of(tmp_path / str(survived)), [survived]

        def write(path, data, left=left):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            written(path, data)

        monkeypatch.setattr(folder_files, "write_atomic", write)
        with pytest.raises(KeyboardInterrupt):
            put_into_folder(folder, {"README.md": "new", "more.json": "{}"})
        assert folder_faults(folder) == []
        monkeypatch.setattr(folder_files, "write_atomic", written)
        assert put_into_folder(folder, {"README.md": "new", "more.json": "{}"})
        assert folder_faults(folder) == []
        assert (folder / "more.json").read_text() == "{}"
