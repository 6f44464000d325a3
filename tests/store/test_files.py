from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_pipeline.store.files import (
    HASH_LIST,
    INCOMPLETE,
    folder_faults,
    new_folder,
    remove_leftovers,
    set_aside,
    write_atomic,
)


def filled(final: Path) -> Path:
    with new_folder(final, act="test") as folder:
        (folder / "inner").mkdir()
        (folder / "a.bin").write_bytes(bytes(range(256)) * 4)
        (folder / "inner" / "b.txt").write_text("text")
    return final


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    write_atomic(path, "old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["record.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["record.json"]


def test_a_folder_is_whole_when_it_is_there(tmp_path: Path) -> None:
    final = filled(tmp_path / "snapshot")
    assert folder_faults(final) == []
    assert names(final) == ["a.bin", "inner", HASH_LIST]
    assert names(tmp_path) == ["snapshot"]


def test_a_folder_whose_making_fails_never_appears(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "snapshot", act="test") as folder:
            (folder / "a.bin").write_bytes(b"1")
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail()
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["a.bin", "inner/b.txt"])
@pytest.mark.parametrize("damage", ["cut to nothing", "cut by one", "flipped", "gone"])
def test_damage_is_named(tmp_path: Path, name: str, damage: str) -> None:
    final = filled(tmp_path / "snapshot")
    path = final / name
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-1] if damage == "cut by one" else b"")
    faults = folder_faults(final)
    assert len(faults) == 1
    assert faults[0].startswith(name)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "is missing"),
        (b"", "is empty"),
        (b"\xff", "not readable"),
        (b"0  ../a.bin\n", "odd line"),
        (b"0  /etc/hostname\n", "odd line"),
        (b"nonsense\n", "odd line"),
        (b"0  a.bin\n", "does not match"),
    ],
)
def test_a_bad_hash_list_is_named(tmp_path: Path, content: bytes | None, fault: str) -> None:
    final = filled(tmp_path / "snapshot")
    (final / HASH_LIST).unlink()
    if content is not None:
        (final / HASH_LIST).write_bytes(content)
    assert [fault in sentence for sentence in folder_faults(final)] == [True]


def test_leftovers_of_the_dead_are_removed_and_of_the_living_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for owner in (dead.pid, os.getpid(), os.getppid()):
        (tmp_path / f".snapshot.{owner}{INCOMPLETE}").mkdir()
    (tmp_path / f".other.{dead.pid}{INCOMPLETE}").mkdir()
    remove_leftovers(tmp_path / "snapshot")
    assert names(tmp_path) == sorted([f".snapshot.{os.getppid()}{INCOMPLETE}", f".other.{dead.pid}{INCOMPLETE}"])


def test_what_is_set_aside_is_kept_under_a_free_name(tmp_path: Path) -> None:
    kept = []
    for content in ("one", "two"):
        (tmp_path / "w.duckdb").write_text(content)
        kept.append(set_aside(tmp_path / "w.duckdb"))
    assert [path.name for path in kept] == ["w.duckdb.damaged-1", "w.duckdb.damaged-2"]
    assert [path.read_text() for path in kept] == ["one", "two"]


CHILD = """
import sys
from pathlib import Path
from dflash_pipeline.store.files import new_folder, write_atomic
root = Path(sys.argv[1])
write_atomic(root / "file", "old")
write_atomic(root / "file", "new")
with new_folder(root / "folder", act="test") as folder:
    (folder / "a").write_text("1")
"""


@pytest.mark.parametrize(
    ("fault", "file", "folder"),
    [
        ("kill:file.before-rename:2", "old", False),
        ("kill:file.after-rename:2", "new", False),
        ("kill:test.before-hash", "new", False),
        ("kill:test.before-rename", "new", False),
        ("kill:test.after-rename", "new", True),
        ("enospc:2", "old", False),
        ("enospc:3", "new", False),
    ],
)
def test_at_every_fault_point_things_are_whole_or_absent(tmp_path: Path, fault: str, file: str, folder: bool) -> None:
    def run(order: str) -> int:
        environment = {**os.environ, "DFLASH_FAULT": order}
        command = [sys.executable, "-c", CHILD, str(tmp_path)]
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    assert run(fault) == (-9 if fault.startswith("kill") else 1)
    assert (tmp_path / "file").read_text() == file
    assert (tmp_path / "folder").exists() == folder
    if folder:
        assert folder_faults(tmp_path / "folder") == []
    else:
        assert run("") == 0
        # A killed writer of a file leaves its temporary one, which nobody reads; a folder's is cleared by the next.
        assert not list(tmp_path.glob(f".folder.*{INCOMPLETE}"))
        assert folder_faults(tmp_path / "folder") == []
