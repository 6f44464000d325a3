"""Drafters judged one after another in one storage, with a real registry; what was measured of them is given."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.results import ExportedDrafter
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.evaluation.acceptance import AcceptanceReport, PromptAcceptance, combine_results
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.stages import promotion
from dflash_pipeline.stages.acceptance import AcceptanceComparison
from dflash_pipeline.stages.promotion import champion_export, make_champion, promote_by_hand, roll_back
from dflash_pipeline.store.files import new_folder
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import read_decisions
from dflash_pipeline.store.records import save_record
from dflash_pipeline.tracking import registry
from dflash_pipeline.tracking.registry import alias_holders
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.settings import LaunchConfig
from tests.conftest import write_recipe
from tests.training.toy_run import write_toy

SPEC = BatchingSpec(strategy="shuffle", token_budget=64, slots_per_step=1, micro_batches_per_rank=1, boundaries=(16,))
UNTRAINED = 1.0


def report(*means: float, sources: tuple[str, ...] = ()) -> AcceptanceReport:
    """A prompt for each mean, of ten rounds of lengths 1 to 4; the first are of the named sources."""
    results = []
    for number, mean in enumerate(means):
        accepted = round(10 * mean)
        long, rest = divmod(accepted - 10, 3)
        histogram = [10 - long - (rest > 0), int(rest == 1), int(rest == 2), long]
        results.append(
            PromptAcceptance(
                source=sources[number] if sources else "chat",
                prompt=f"prompt {number}",
                prompt_tokens=5,
                num_tokens=accepted + 1,
                histogram=tuple(histogram),
                cut_tokens=0,
                lossless=True,
            )
        )
    return combine_results(results)


@dataclass(frozen=True)
class Line:
    """A recipe's storage, and what would be measured of each of its exports."""

    recipe: Recipe
    storage: Storage
    launch: LaunchConfig
    """Of a run that is of no other use."""
    reports: dict[str, AcceptanceReport]

    def export(self, run: str, measured: AcceptanceReport, *, target: str = "toy") -> ExportedDrafter:
        run_dir, folder = self.storage.runs / run, self.storage.exports / run
        save_record(run_dir / "launch.json", replace(self.launch, run=run, experiment="tiny", target=target))
        save_record(run_dir / "run.json", RunRecord(run=run, plan="p", target=target, total_steps=2))
        with new_folder(folder, act="export") as files:
            (files / "model.safetensors").write_bytes(f"weights of {run}".encode())
        self.reports[run] = measured
        return ExportedDrafter(run=run, export_dir=str(folder), target_dir="", num_tensors=1)

    def judge(self, exported: ExportedDrafter, **settings):
        comparison = AcceptanceComparison(
            run=exported.run,
            export_dir=exported.export_dir,
            prompts="given",
            max_new_tokens=8,
            untrained=report(*[UNTRAINED] * 4),
            trained=self.reports[exported.run],
        )
        rules = self.recipe.promotion.model_copy(update=settings)
        recipe = self.recipe.model_copy(update={"promotion": rules})
        ingestion = Ingestion.__new__(Ingestion)  # Nothing that measures is called.
        return make_champion(recipe, self.storage, ingestion, exported, comparison)

    def decisions(self) -> list[tuple[str, str]]:
        return [(d.action, d.contender.run) for d in read_decisions(self.storage.promotions, "tiny")]

    def aliases(self) -> dict[str, str]:
        """Run by alias, as MLflow has it."""
        from mlflow import MlflowClient

        uri = tracking_uri(self.storage.root)
        client = MlflowClient(uri)
        holders = alias_holders(uri, "tiny").items()
        return {alias: client.get_model_version("tiny", str(v)).tags["run"] for alias, v in holders}

    @property
    def champion(self) -> str | None:
        found = champion_export(self.storage, "tiny")
        return None if found is None else found.name


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Making one takes seconds: each test gets a copy."""
    root = tmp_path_factory.mktemp("database")
    (root / "mlflow").mkdir()
    alias_holders(tracking_uri(root), "none")
    return root / "mlflow" / "mlflow.db"


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> LaunchConfig:
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=[8, 8], spec=SPEC, epochs=1)


@pytest.fixture
def line(tmp_path, empty_database, launch, monkeypatch) -> Line:
    storage = Storage(root=tmp_path / "storage")
    (storage.root / "mlflow").mkdir(parents=True)
    shutil.copy(empty_database, storage.root / "mlflow" / "mlflow.db")
    recipe = load_recipe(write_recipe(tmp_path / "tiny.yaml"))
    made = Line(recipe=recipe, storage=storage, launch=launch, reports={})
    monkeypatch.setattr(promotion, "measured", lambda recipe, storage, ingestion, folder: made.reports[folder.name])
    return made


def test_a_line_of_drafters(line):
    weak = line.judge(line.export("weak", report(1.0, 1.1, 1.0, 1.1))).record
    assert (weak.action, weak.champion, line.champion) == ("kept", None, None)
    assert line.aliases() == {"challenger": "weak"}

    first = line.judge(line.export("first", report(2.0, 2.1, 2.2, 2.0))).record
    assert first.action == "promoted"
    assert (line.champion, line.aliases()) == ("first", {"champion": "first"})

    near = line.judge(line.export("near", report(2.1, 2.0, 2.3, 1.9))).record
    assert (near.action, near.champion.run) == ("kept", "first")
    assert "not certainly a gain" in near.reason
    assert line.aliases() == {"champion": "first", "challenger": "near"}

    better = line.judge(line.export("better", report(2.5, 2.6, 2.8, 2.5))).record
    assert better.action == "promoted"
    assert better.difference.mean == pytest.approx(0.525)
    assert better.difference.interval[0] > 0.4
    assert (line.champion, line.aliases()) == ("better", {"champion": "better", "previous": "first"})
    assert line.decisions() == [("kept", "weak"), ("promoted", "first"), ("kept", "near"), ("promoted", "better")]


def test_a_source_that_loses_keeps_a_winner_out(line):
    sources = ("chat", "chat", "chat", "code")
    line.judge(line.export("first", report(2.0, 2.0, 2.0, 2.0, sources=sources)))
    lopsided = line.export("lopsided", report(3.0, 3.0, 3.0, 1.8, sources=sources))
    found = line.judge(lopsided, most_source_loss=0.05)
    assert found.record.difference.interval[0] > 0
    assert "code loses 10.0%" in found.record.reason
    assert line.champion == "first"
    assert line.judge(lopsided, most_source_loss=0.2).record.action == "promoted"


def test_the_same_again_decides_nothing(line):
    first = line.export("first", report(2.0, 2.1, 2.2, 2.0))
    near = line.export("near", report(2.1, 2.0, 2.3, 1.9))
    made = [line.judge(exported) for exported in (first, first, near, near)]
    assert [m.reused for m in made] == [False, True, False, True]
    assert made[0].record == made[1].record
    assert made[2].record == made[3].record
    assert len(line.decisions()) == 2


def test_other_measurements_or_rules_decide_again(line):
    line.judge(line.export("first", report(2.0, 2.1, 2.2, 2.0)))
    near = line.export("near", report(2.1, 2.0, 2.3, 1.9))
    assert not line.judge(near).reused
    line.reports["near"] = report(2.4, 2.4, 2.6, 2.3)
    assert line.judge(near).record.action == "promoted"


def test_a_rollback_keeps_and_stays(line):
    first, better = line.export("first", report(2.0, 2.1)), line.export("better", report(2.5, 2.6))
    line.judge(first)
    line.judge(better)
    decision = roll_back("tiny", line.storage, reason="it repeats itself")
    assert (decision.action, decision.champion.run, decision.by_hand) == ("rolled back", "first", True)
    assert (line.champion, line.aliases()) == ("first", {"champion": "first", "challenger": "better"})

    again = line.judge(better).record
    assert again.action == "kept"
    assert "taken back by hand" in again.reason
    assert line.judge(better).reused
    promote_by_hand("tiny", line.storage, "better", reason="it was the prompt")
    assert line.champion == "better"
    assert line.aliases() == {"champion": "better", "previous": "first"}
    assert [action for action, _ in line.decisions()] == ["promoted", "promoted", "rolled back", "kept", "promoted"]


def test_rollbacks_lead_back_one_by_one_and_end_with_a_sentence(line):
    for number, mean in enumerate((2.0, 2.5, 3.0)):
        line.judge(line.export(f"run{number}", report(mean, mean + 0.1)))
    roll_back("tiny", line.storage, reason="a")
    assert line.aliases() == {"champion": "run1", "previous": "run0", "challenger": "run2"}
    roll_back("tiny", line.storage, reason="b")
    assert line.aliases() == {"champion": "run0", "challenger": "run1"}
    with pytest.raises(Refused, match="has had 1 champions"):
        roll_back("tiny", line.storage, reason="c")


def test_what_is_gone_is_not_gone_back_to(line):
    line.judge(line.export("first", report(2.0, 2.1)))
    line.judge(line.export("better", report(2.5, 2.6)))
    shutil.rmtree(line.storage.exports / "first")
    with pytest.raises(Refused, match="cannot be served: it is gone"):
        roll_back("tiny", line.storage, reason="a")
    assert line.champion == "better"


@pytest.mark.parametrize("fault", ["gone", "damaged", "target"])
def test_a_champion_that_cannot_be_compared_stays_unless_the_recipe_says_otherwise(line, fault):
    line.judge(line.export("first", report(2.0, 2.1)))
    better = line.export("better", report(2.5, 2.6), target="other" if fault == "target" else "toy")
    if fault == "gone":
        shutil.rmtree(line.storage.exports / "first")
    elif fault == "damaged":
        (line.storage.exports / "first" / "model.safetensors").write_bytes(b"spoilt")
    kept = line.judge(better).record
    assert (kept.action, kept.champion.run) == ("kept", "first")
    assert {"gone": "gone", "damaged": "damaged", "target": "another target"}[fault] in kept.reason
    replaced = line.judge(better, incomparable="replace").record
    assert (replaced.action, line.champion) == ("promoted", "better")
    assert replaced.reason.startswith(kept.reason.partition(":")[0])


def test_without_a_registry_nothing_is_decided(line, monkeypatch):
    def down(*_):
        raise Failed("no answer", where="mlflow", fix="start it")

    first = line.export("first", report(2.0, 2.1))
    with monkeypatch.context() as without:
        without.setattr(registry, "ensure_version", down)
        with pytest.raises(Failed, match="no answer"):
            line.judge(first)
    assert line.decisions() == []
    assert line.judge(first).record.action == "promoted"


def test_aliases_that_stayed_behind_follow_with_the_next_call(line, monkeypatch):
    first, better = line.export("first", report(2.0, 2.1)), line.export("better", report(2.5, 2.6))
    line.judge(first)
    moved, calls = registry.set_aliases, []

    def killed_the_second_time(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        moved(*given)

    with monkeypatch.context() as dying:
        dying.setattr(registry, "set_aliases", killed_the_second_time)
        with pytest.raises(KeyboardInterrupt):
            line.judge(better)
    assert (line.champion, line.aliases()["champion"]) == ("better", "first")
    assert line.judge(better).reused
    assert line.aliases() == {"champion": "better", "previous": "first"}
    assert len(line.decisions()) == 2


def test_a_registry_that_was_deleted_is_filled_again(line, empty_database):
    first, better = line.export("first", report(2.0, 2.1)), line.export("better", report(2.5, 2.6))
    line.judge(first)
    line.judge(better)
    shutil.copy(empty_database, line.storage.root / "mlflow" / "mlflow.db")
    line.judge(better)
    assert line.aliases() == {"champion": "better", "previous": "first"}


def test_the_version_tells_what_was_decided(line):
    from mlflow import MlflowClient

    line.judge(line.export("first", report(2.0, 2.1)))
    [version] = MlflowClient(tracking_uri(line.storage.root)).search_model_versions("name='tiny'")
    assert version.source == (line.storage.exports / "first").as_uri()
    assert version.tags["decision"] == "promoted"
    assert version.tags["reason"].startswith("first champion")
    assert version.tags["acceptance"] == "2.0500"
    assert {"run", "snapshot", "plan", "target", "weights", "decided"} <= version.tags.keys()


@pytest.mark.parametrize("name", ["nosuch", "../runs", "first.damaged-1", "..", ""])
def test_only_an_export_can_be_promoted(line, name):
    line.export("first", report(2.0, 2.1))
    with pytest.raises(Refused, match="no such export"):
        promote_by_hand("tiny", line.storage, name, reason="a")


def test_a_damaged_export_cannot_be_promoted_and_the_champion_not_again(line):
    line.export("first", report(2.0, 2.1))
    promote_by_hand("tiny", line.storage, "first", reason="a")
    with pytest.raises(Refused, match="champion already"):
        promote_by_hand("tiny", line.storage, "first", reason="a")
    line.export("second", report(2.0, 2.1))
    (line.storage.exports / "second" / "model.safetensors").write_bytes(b"spoilt")
    with pytest.raises(Refused, match="does not match its hash"):
        promote_by_hand("tiny", line.storage, "second", reason="a")


def test_the_champion_is_read_without_mlflow(line, monkeypatch):
    assert champion_export(line.storage, "tiny") is None
    line.judge(line.export("first", report(2.0, 2.1)))
    monkeypatch.setattr("mlflow.MlflowClient.__init__", None)
    assert champion_export(line.storage, "tiny") == line.storage.exports / "first"
    assert champion_export(line.storage, "another") is None
