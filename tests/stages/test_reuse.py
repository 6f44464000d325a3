"""What is the same is reused, what changed is rebuilt, what is damaged is set aside: from rows to a sealed plan."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.batching import PlannedEpoch, make_boundaries, make_epochs, make_plan, make_statistics
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import epoch_file, load_epoch, plan_folder
from tests.conftest import ROOT, write_recipe

CASE = json.loads((ROOT / "tests" / "cases" / "rs_stale_cache.json").read_text())
TOKENS = {"max_length", "template_sha256", "tokenizer_sha256", "dataset_sha256"}
MANIFESTS = {"seed", "budget", "world_size"}


@dataclass(frozen=True, kw_only=True)
class Planned:
    snapshot: Made[CorpusSnapshot]
    epochs: list[PlannedEpoch]
    plan: Made[RunPlan]
    folder: Path

    @property
    def reused(self) -> tuple[bool, bool, bool]:
        return self.snapshot.reused, all(epoch.reused for epoch in self.epochs), self.plan.reused


class Workshop:
    """A small data set and a target's tokenizer that a test may change, and one storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = Storage(root=folder / "storage")
        self.rows = folder / "rows.jsonl"
        self.target = folder / "target"
        self.template = folder / "template.jinja"
        shutil.copytree(
            ROOT / "examples" / "target",
            self.target,
            ignore=shutil.ignore_patterns("*.safetensors"),
            copy_function=shutil.copyfile,
        )
        shutil.copyfile(ROOT / "examples" / "target" / "chat_template.jinja", self.template)
        self.write_rows(40)

    def write_rows(self, number: int) -> None:
        rows = [{"question": f"What is {n} and {n}?", "answer": "It is " + "so " * (n % 11 + 2)} for n in range(number)]
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def plan(self, *, epochs: int = 2, **sections: dict[str, Any]) -> Planned:
        settings: dict[str, dict[str, Any]] = {
            "data": {
                "sources": [{"path": str(self.rows), "map": {"user": "question", "assistant": "answer"}}],
                "max_rows": None,
            },
            "target": {"path": str(self.target), "chat_template": str(self.template)},
            "responses": {"enabled": False},
            "batching": {"token_budget": 256, "epochs": epochs, "slots_per_step": 2},
        }
        for section, values in sections.items():
            settings[section] = {**settings.get(section, {}), **values}
        recipe = load_recipe(write_recipe(self.folder / "recipe.yaml", **settings))
        ingestion = make_conversations(recipe, self.storage).record
        answers = make_responses(recipe, self.storage, ingestion).record
        snapshot = make_snapshot(recipe, self.storage, ingestion, answers)
        boundaries = make_boundaries(recipe, self.storage, make_statistics(self.storage, snapshot.record))
        made = make_epochs(
            recipe, self.storage, snapshot.record, boundaries, range(epochs), tell=lambda planned, manifest: None
        )
        plan = make_plan(recipe, self.storage, snapshot.record, boundaries)
        folder = plan_folder(self.storage.plans, snapshot=snapshot.record.fingerprint, spec=plan.record.spec)
        return Planned(snapshot=snapshot, epochs=made, plan=plan, folder=folder)


@pytest.fixture
def workshop(tmp_path) -> Workshop:
    return Workshop(tmp_path)


def test_the_first_time_everything_is_made_the_second_time_nothing(workshop):
    first = workshop.plan()
    assert first.reused == (False, False, False)
    before = {p: p.stat().st_mtime_ns for p in workshop.storage.snapshots.rglob("*") if p.is_file()}
    second = workshop.plan()
    assert second.reused == (True, True, True)
    assert second.snapshot.record == first.snapshot.record
    assert second.plan.record == first.plan.record
    assert {p: p.stat().st_mtime_ns for p in workshop.storage.snapshots.rglob("*") if p.is_file()} == before


def changed(workshop: Workshop, change: dict[str, Any]) -> Planned:
    """The plan after a change of the case, each as its counterpart here."""
    [(what, value)] = change.items()
    match what:
        case "max_length":
            return workshop.plan(data={"max_length": value // 8})
        case "template_sha256":
            workshop.template.write_text(workshop.template.read_text() + "{# changed #}")
        case "tokenizer_sha256":
            file = workshop.target / "tokenizer.json"
            file.write_text(json.dumps(json.loads(file.read_text())))
        case "dataset_sha256":
            workshop.write_rows(41)
        case "seed":
            return workshop.plan(batching={"seed": 3 + value})
        case "budget":
            return workshop.plan(batching={"token_budget": value // 16})
        case "world_size":
            return workshop.plan(batching={"slots_per_step": value})
        case "log_level":
            return workshop.plan(evaluation={"num_prompts": 1}, schedule={"cron": "0 3 * * *"})
        case "mlflow_uri":
            return workshop.plan(training={"num_ranks": 1, "learning_rate": 0.1}, drafter={"seed": 9})
    return workshop.plan()


@pytest.mark.parametrize("change", CASE["changes"], ids=lambda change: next(iter(change)))
def test_stale_cache(workshop, change):
    """Tokens follow the rows and how they are rendered; manifests follow tokens and batching; neither anything else."""
    before = workshop.plan()
    after = changed(workshop, change)
    [what] = change
    assert after.snapshot.reused is (what not in TOKENS)
    assert after.reused[1:] == ((False, False) if what in TOKENS | MANIFESTS else (True, True))
    assert (after.snapshot.record.fingerprint == before.snapshot.record.fingerprint) is (what not in TOKENS)
    assert (after.plan.record.fingerprint == before.plan.record.fingerprint) is (what not in TOKENS | MANIFESTS)
    assert before.folder.exists()  # Nothing old is thrown away.


def test_another_number_of_ranks_rebuilds_nothing(workshop):
    workshop.plan(batching={"slots_per_step": 4})
    assert workshop.plan(batching={"slots_per_step": 4}, training={"num_ranks": 4}).reused == (True, True, True)


def test_more_epochs_add_files_and_touch_none(workshop):
    two = workshop.plan()
    before = {path: path.stat().st_mtime_ns for path in two.folder.glob("epoch-*")}
    three = workshop.plan(epochs=3)
    assert [epoch.reused for epoch in three.epochs] == [True, True, False]
    assert three.folder == two.folder
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert three.plan.record.epochs[:2] == two.plan.record.epochs
    assert workshop.plan().plan.reused


def test_a_damaged_snapshot_is_set_aside_and_rebuilt_alike(workshop):
    first = workshop.plan()
    folder = workshop.storage.snapshots / first.snapshot.record.fingerprint
    shard = folder / first.snapshot.record.shards[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9] + b"!" + whole[-8:])
    again = workshop.plan()
    assert again.reused == (False, True, True)
    assert again.snapshot.record == first.snapshot.record
    assert folder_faults(folder) == []
    assert shard.read_bytes() == whole
    [kept] = workshop.storage.snapshots.glob("*.damaged-1")
    assert (kept / shard.name).read_bytes() != whole


@pytest.mark.parametrize("damage", [b"", b"not parquet"])
def test_a_damaged_manifest_is_set_aside_and_rebuilt_alike(workshop, damage):
    first = workshop.plan()
    file = epoch_file(first.folder, 1)
    digest = load_epoch(first.folder, 1).digest()
    file.write_bytes(damage)
    again = workshop.plan()
    assert [epoch.reused for epoch in again.epochs] == [True, False]
    assert again.plan.record == first.plan.record
    assert load_epoch(first.folder, 1).digest() == digest
    assert file.with_name("epoch-001.parquet.damaged-1").read_bytes() == damage


def test_without_the_warehouse_the_snapshot_is_still_used(workshop):
    """It is a catalogue: what it lists can be read again from the files."""
    first = workshop.plan()
    workshop.storage.warehouse.unlink()
    again = workshop.plan()
    assert again.reused == (True, True, True)
    assert again.plan.record == first.plan.record
