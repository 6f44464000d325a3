"""A disk that is full at write N, for every N of the planning stages: a clear error, and everything earlier whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dflash_pipeline import faults
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_epoch, load_plan
from tests.faults.chain import Left, left_in
from tests.faults.planning import planning

MOST_WRITES = 200


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Left:
    storage = Storage(root=tmp_path_factory.mktemp("undisturbed"))
    planning(storage)
    return left_in(storage.root)


def test_a_full_disk_at_every_write(undisturbed: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One storage for all: each run meets what the ones before it left, and gets one write further or as far."""
    storage = Storage(root=tmp_path / "storage")
    faulted = 0
    for number in range(1, MOST_WRITES):
        if not fails_at(number, storage, monkeypatch):
            break
        faulted += 1
        all_whole(storage, undisturbed)
    assert faulted >= 5
    assert left_in(storage.root) == undisturbed


def test_each_write_in_an_empty_storage(undisturbed: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage of its own for each write: the run after it ends as if the disk had never been full."""
    number = 0
    for number in range(1, MOST_WRITES):
        storage = Storage(root=tmp_path / str(number))
        if not fails_at(number, storage, monkeypatch):
            break
        all_whole(storage, undisturbed)
        monkeypatch.setattr(faults, "_ORDER", "")
        planning(storage)
        assert left_in(storage.root) == undisturbed
    assert number >= 10


def fails_at(number: int, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether planning came to write `number`; if so, that it said why it stopped."""
    monkeypatch.setattr(faults, "_ORDER", f"enospc:{number}")
    faults._passed.clear()
    try:
        planning(storage)
    except OSError as error:
        fault = error
    else:
        return False
    assert fault.errno == errno.ENOSPC
    return True


def all_whole(storage: Storage, undisturbed: Left) -> None:
    """Whatever has its final name is what an undisturbed run would have put there."""
    found = left_in(storage.root)
    assert found.files.items() <= undisturbed.files.items()
    for folder in storage.snapshots.glob("[!.]*"):
        assert folder_faults(folder) == []
    for folder in storage.plans.glob("*"):
        for epoch in folder.glob("epoch-*.parquet"):
            load_epoch(folder, int(epoch.stem.removeprefix("epoch-")))
        if list(folder.glob("plan-*.json")):
            load_plan(folder)
