"""Which settings the Dagster instance gets, and when they are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflash_pipeline.assets.instance import INSTANCE_CONFIG, prepare_home
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store.layout import Storage


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setenv("DAGSTER_HOME", "")  # `prepare_home` sets it for the process: undone at the end.
    monkeypatch.delenv("DFLASH_DAGSTER_YAML", raising=False)
    return Storage(root=tmp_path / "storage")


def test_without_a_wish_they_are_ours_and_replace_what_was_there(storage: Storage):
    home = prepare_home(storage)
    assert os.environ["DAGSTER_HOME"] == str(home)
    (home / "dagster.yaml").write_text("telemetry: {enabled: true}\n")
    prepare_home(storage)
    assert (home / "dagster.yaml").read_bytes() == INSTANCE_CONFIG.read_bytes()


def test_a_file_of_the_users_takes_their_place(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "own.yaml"
    own.write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DFLASH_DAGSTER_YAML", str(own))
    assert (prepare_home(storage) / "dagster.yaml").read_text() == own.read_text()


def test_a_file_that_is_in_place_is_not_written_again(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    kept = prepare_home(storage) / "dagster.yaml"
    kept.write_text("telemetry: {enabled: false}\n")
    kept.chmod(0o444)
    before = kept.stat()
    monkeypatch.setenv("DFLASH_DAGSTER_YAML", str(kept))
    prepare_home(storage)
    assert (kept.stat().st_mtime_ns, kept.read_text()) == (before.st_mtime_ns, "telemetry: {enabled: false}\n")


def test_a_file_that_is_not_there_is_refused_with_its_name(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DFLASH_DAGSTER_YAML", "/nowhere/dagster.yaml")
    with pytest.raises(Refused, match=r"DFLASH_DAGSTER_YAML: /nowhere/dagster.yaml: there is no such file; correct"):
        prepare_home(storage)
    assert not (storage.dagster_home / "dagster.yaml").exists()
