"""`dflash run --dry-run`: one answer, for a script or a person; nothing written; right about what a run then makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, write_recipe

KEYS = {
    *("dry_run", "lengths", "snapshot", "plan", "boundaries", "total_steps", "num_micro_batches", "epochs", "memory"),
    *("stops_after", "warm_start", "storage", "hours", "faults", "target_dir", "seconds"),
}


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every file with its size and the time of its last change."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def size_of(*paths: Path) -> int:
    return sum(file.stat().st_size for path in paths for file in [path, *path.rglob("*")] if file.is_file())


def test_of_a_finished_run_it_says_what_the_run_made_and_changes_nothing(chain, dflash, monkeypatch):
    monkeypatch.setenv("DFLASH_STORAGE", str(chain.storage.root))
    before = contents(chain.storage.root)
    ran = dflash("run", chain.recipe_file, "--dry-run", "--json")
    assert ran.code == 0
    assert contents(chain.storage.root) == before

    found = ran.document
    assert found.keys() == KEYS
    assert {key: found[key] for key in ("snapshot", "plan", "total_steps", "boundaries", "target_dir")} == {
        key: chain.facts[key] for key in ("snapshot", "plan", "total_steps", "boundaries", "target_dir")
    }
    shared = ("epoch", "num_steps", "padding_efficiency")
    assert [{key: epoch[key] for key in shared} for epoch in found["epochs"]] == chain.facts["epochs"]
    assert (found["lengths"]["origin"], found["lengths"]["estimated"], found["faults"]) == ("snapshot", False, [])


def test_storage_is_what_the_finished_run_takes(chain, dflash, monkeypatch):
    """Of what grows with data and drafter; the rest is a few megabytes whatever the run."""
    monkeypatch.setenv("DFLASH_STORAGE", str(chain.storage.root))
    items = dflash("run", chain.recipe_file, "--dry-run", "--json").document["storage"]["items"]
    said = {item["what"]: item["bytes"] for item in items}
    [run_dir], root = chain.storage.runs.iterdir(), chain.storage.root
    weights = size_of(chain.storage.exports / chain.facts["run"] / "model.safetensors")
    kept = list((run_dir / "checkpoints").iterdir())
    tensors = size_of(*(path for folder in kept for path in folder.glob("*.safetensors")))
    [snapshot] = chain.storage.snapshots.iterdir()
    assert said["export"] == pytest.approx(weights, rel=0.02)
    # One more stands there while the newest is written.
    assert said["checkpoints"] == pytest.approx(tensors * (len(kept) + 1) / len(kept), rel=0.02)
    assert said["snapshot"] == pytest.approx(size_of(*snapshot.glob("*.arrow")), rel=0.25)
    assert said["databases"] > size_of(chain.storage.warehouse, root / "mlflow", root / "dagster")
    assert said["curves"] > size_of(run_dir / "events.jsonl")


def test_a_snapshot_of_another_rule_is_not_taken(chain, dflash, monkeypatch):
    monkeypatch.setenv("DFLASH_STORAGE", str(chain.storage.root))
    other = dflash("run", chain.recipe_file, "--dry-run", "--json", "--set", "data.max_length=100").document
    assert (other["lengths"]["origin"], other["snapshot"], other["plan"]) == ("sources", None, None)
    assert other["boundaries"][-1] <= 100


def test_without_json_a_person_reads_text(dflash, tmp_path):
    recipe = write_recipe(tmp_path / "tiny.yaml")
    ran = dflash("run", recipe, "--dry-run", "--set", f"storage={tmp_path / 'storage'}")
    assert ran.code == 0
    for part in (
        "nothing was written",
        "about ",
        "memory ",
        "AdamW",
        "storage ",
        "training  unknown",
        "no fault found",
    ):
        assert part in ran.out
    assert not (tmp_path / "storage").exists()


def test_faults_are_told_and_do_not_end_it(dflash, tmp_path):
    recipe, lengths = (
        write_recipe(tmp_path / "tiny.yaml", data={"sources": [{"path": "nosuch.jsonl"}]}),
        tmp_path / "l.npy",
    )
    np.save(lengths, np.full(40, 100))
    ran = dflash("run", recipe, "--dry-run", "--lengths", lengths)
    assert ran.code == 0
    assert "preflight 1 faults" in ran.out
    assert "nosuch.jsonl" in ran.out


def test_without_lengths_it_is_refused_with_what_is_known(dflash, tmp_path):
    recipe = write_recipe(tmp_path / "tiny.yaml", data={"sources": [{"path": "nosuch.jsonl"}]})
    ran = dflash("run", recipe, "--dry-run", "--json")
    assert ran.code == 2
    assert "--lengths FILE" in ran.document["error"]["fix"]
    assert len(ran.document["faults"]) == 1


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--lengths", "l.npy"], "--lengths"),
        (["--dry-run", "--fresh"], "--dry-run --fresh"),
        (["--dry-run", "--plan-only"], "--dry-run --plan-only"),
        (["--dry-run", "--lengths", "nosuch.npy"], "nosuch.npy"),
    ],
)
def test_options_that_do_not_go_together_are_refused(dflash, tmp_path, options, where):
    recipe = write_recipe(tmp_path / "tiny.yaml")
    ran = dflash("run", recipe, "--json", *options)
    assert (ran.code, ran.document["error"]["where"]) == (2, where)


def test_the_big_recipe_is_answered_without_weights_or_data(dflash, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    examples = ROOT / "examples" / "qwen3-8b"
    ran = dflash(
        "run", ROOT / "recipes/qwen3-8b-8gpu.yaml", "--dry-run", "--lengths", examples / "lengths.parquet", "--json"
    )
    assert ran.code == 0
    found = ran.document
    assert (found["lengths"]["num_samples"], len(found["epochs"])) == (902_000, 6)
    assert 50 * 2**30 < found["memory"]["bytes_per_rank"] < 72 * 2**30
    assert found["hours"]["origin"] == "history"
    assert 75 < found["hours"]["low"] < found["hours"]["high"] < 100
    assert {Path(fault["where"]).name for fault in found["faults"]} >= {"qwen3-8b", "conversations"}
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_of_other_rows_is_no_fact(chain, dflash, monkeypatch):
    """The recipe names other rows by now, or wants other answers: its newest snapshot says nothing of them."""
    monkeypatch.setenv("DFLASH_STORAGE", str(chain.storage.root))
    for changed in ("data.max_rows=7", "responses.enabled=false"):
        found = dflash("run", chain.recipe_file, "--dry-run", "--json", "--set", changed).document
        assert found["lengths"]["origin"] == "sources", changed
        assert (found["snapshot"], found["plan"]) == (None, None)
