"""The cases on resuming: what goes in lies in tests/cases, what must come out is written here."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.store.files import new_folder
from dflash_pipeline.store.plans import load_planned_epoch
from dflash_pipeline.training.checkpoint import list_checkpoints, newest_whole_checkpoint, prune_checkpoints
from dflash_pipeline.training.loader import EpochLoader
from tests.training.toy_run import plan_of, train, write_toy

CASES = Path(__file__).parents[1] / "cases"


def case(name: str) -> dict:
    return json.loads((CASES / name).read_text())


def even_batches(*, samples: int, batch_samples: int, seed: int, length: int = 4):
    """A corpus of equal lengths, so that every micro-batch holds exactly `batch_samples`."""
    budget = length * batch_samples
    spec = BatchingSpec(strategy="shuffle", token_budget=budget, slots_per_step=1, boundaries=(length,), seed=seed)
    return [length] * samples, spec


def test_finished_run(tmp_path):
    wanted = case("rs_finished_run.json")
    lengths, spec = even_batches(samples=wanted["total_steps"] * 2, batch_samples=2, seed=0)
    toy = write_toy(tmp_path, lengths=lengths, spec=spec, epochs=1)
    assert train(toy, run_dir=tmp_path / "run").outcome.last_step == wanted["checkpoint_step"]
    checkpoints = list_checkpoints(tmp_path / "run" / "checkpoints")
    for _ in range(wanted["starts"]):
        again = train(toy, run_dir=tmp_path / "run")
        assert (again.outcome.finished, again.recorder.steps) == (True, [])
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == checkpoints


def test_second_epoch(tmp_path):
    """Also that another pass over the batches of an epoch is another order: else equal losses would prove little."""
    wanted = case("rs_second_epoch.json")
    lengths, spec = even_batches(samples=wanted["samples"], batch_samples=wanted["batch_samples"], seed=wanted["seed"])
    epochs = wanted["uninterrupted_steps"] // wanted["batches_per_epoch"]
    toy = write_toy(tmp_path, lengths=lengths, spec=spec, epochs=epochs)
    plan = plan_of(toy)
    assert [e.num_steps for e in plan.epochs] == [wanted["batches_per_epoch"]] * epochs
    stop = wanted["stop_at_step"]
    assert plan.position(stop) == Position(epoch=1, step=75)

    served = []

    def watch(trainer):
        collate = trainer.collate
        trainer.collate = lambda batch: served.append(tuple(batch.sample_ids.tolist())) or collate(batch)

    whole = train(toy, run_dir=tmp_path / "whole", watch=watch)
    whole_batches, served = served, []
    train(toy, run_dir=tmp_path / "parts", stop_after=stop)
    served = []
    resumed = train(toy, run_dir=tmp_path / "parts", watch=watch)
    assert resumed.outcome.first_step == stop
    assert [step for step, _ in resumed.recorder.losses] == list(range(stop + 1, wanted["uninterrupted_steps"] + 1))
    assert resumed.recorder.losses == whole.recorder.losses[stop:]
    assert served == whole_batches[stop:]
    assert sorted(whole_batches[:125]) != sorted(whole_batches[125:250])


def test_skip_once(tmp_path):
    wanted = case("rs_skip_once.json")
    lengths, spec = even_batches(samples=wanted["samples"], batch_samples=wanted["batch_samples"], seed=wanted["seed"])
    toy = write_toy(tmp_path, lengths=lengths, spec=spec, epochs=wanted["epochs"])
    plan, stop = plan_of(toy), wanted["stop_after_batches"]
    counts = []
    for epoch in range(wanted["epochs"]):
        manifest = load_planned_epoch(Path(toy.plan_dir), plan, epoch)
        at = Position(epoch=epoch, step=stop if epoch == 0 else 0)
        loader = EpochLoader(manifest, at=at, slots=range(1), collate=lambda batch: batch)
        ids = [i for prepared in loader for batch in prepared.batches for i in batch.sample_ids.tolist()]
        counts.append(len(ids) // wanted["batch_samples"])
        before = manifest.sample_ids[: at.step * wanted["batch_samples"]].tolist()
        assert sorted(before + ids) == list(range(wanted["samples"]))
    assert counts == [11, 16, 16]


@pytest.fixture
def named_folders(tmp_path):
    for name in case("rs_checkpoint_names.json")["directories"]:
        with new_folder(tmp_path / name, act="checkpoint") as fresh:
            (fresh / "state.json").write_text("{}")
    return tmp_path


OTHERS = {"handpicked", "step_", "tmp-step_200000", "step_200000.incomplete"}
NEWEST_FIRST = ["step_0900000", "step_100000", "step_10000", "step_9000", "step_999"]


def test_checkpoint_names(named_folders):
    assert [path.name for path in list_checkpoints(named_folders)] == NEWEST_FIRST
    assert newest_whole_checkpoint(named_folders).name == "step_0900000"


@pytest.mark.parametrize(("keep", "left"), [(-1, NEWEST_FIRST), (2, NEWEST_FIRST[:2])])
def test_checkpoints_kept(named_folders, keep, left):
    assert keep in case("rs_checkpoint_names.json")["keep_last"]
    prune_checkpoints(named_folders, keep=keep)
    assert {path.name for path in named_folders.iterdir()} == {*left, *OTHERS}


def test_keeping_no_checkpoint_is_refused(named_folders):
    with pytest.raises(Refused):
        prune_checkpoints(named_folders, keep=0)
    assert {path.name for path in named_folders.iterdir()} == {*NEWEST_FIRST, *OTHERS}


def test_torn_checkpoints(tmp_path, caplog):
    folder = tmp_path / "checkpoints"
    shutil.copytree(CASES / "rs_torn_checkpoints", folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with caplog.at_level(logging.WARNING):
        assert newest_whole_checkpoint(folder).name == "step_20"
    assert [m.split(" is not used: ")[0] for m in caplog.messages] == [f"checkpoint step_{n}" for n in (50, 40, 30)]
    assert all(message.partition(": ")[2] for message in caplog.messages)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_torn_checkpoints_are_in_nobodys_way_afterwards(tmp_path):
    """Keeping one, after a resume at 20: the torn ones neither count nor go."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(CASES / "rs_torn_checkpoints", folder)
    prune_checkpoints(folder, keep=1)
    assert {path.name for path in folder.iterdir()} == {"step_50", "step_40", "step_30", "step_20"}
