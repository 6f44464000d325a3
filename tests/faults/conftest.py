"""The undisturbed chain, run once, and the storages that killed runs start from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dflash_pipeline.stages.promotion import champion_of, promote_by_hand
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.tracking.store_uri import tracking_uri
from tests.faults.chain import WARM, Reference, copy_without, left_in, run_chain
from tests.faults.points import Start

JUDGED = ("exports", "reports", "promotions.jsonl")
DERIVED = ("snapshots", "plans", "features", "runs", *JUDGED, "dagster/records", "warehouse.duckdb")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-times", type=int, default=1, help="How often each point is killed.")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "again" in metafunc.fixturenames:
        metafunc.parametrize("again", range(metafunc.config.getoption("--faults-times", default=1)))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The chain in two commands, so that the storage between planning and training is a real one.

    The databases of Dagster and MLflow are kept in every start: making them takes longer than the chain does.
    """
    folder = tmp_path_factory.mktemp("reference")
    whole = folder / "whole"
    assert run_chain(whole, "--plan-only").exit_code == 0
    planned = Path(shutil.copytree(whole, folder / "planned"))
    ended = run_chain(whole)
    assert ended.exit_code == 0, ended.errors
    shutil.copytree(whole / "mlflow", planned / "mlflow")
    starts: dict[Start, Path] = {
        "empty": copy_without(planned, folder / "empty", left_out=DERIVED),
        "planned": planned,
        "trained": copy_without(whole, folder / "trained", left_out=JUDGED),
    }
    # By hand: whether so small a drafter is better than none is no question here.
    if champion_of(Storage(root=whole), "faults") is None:
        promote_by_hand("faults", Storage(root=whole), ended.answer["run"], reason="to begin with it")
    starts["promoted"] = Path(shutil.copytree(whole, folder / "promoted"))
    left = left_in(whole)
    began = run_chain(whole, *WARM)
    assert began.exit_code == 0, began.errors
    assert began.answer["warm_start"] == ended.answer["run"]
    # Its aliases stand in the database that is kept, and would not move again.
    MlflowClient(tracking_uri(starts["trained"])).delete_registered_model("faults")
    return Reference(left=left, planned=left_in(planned), warm=left_in(whole), starts=starts)


@pytest.fixture
def start_from(reference: Reference, tmp_path: Path) -> Callable[[Start], Path]:
    def copied(start: Start) -> Path:
        return Path(shutil.copytree(reference.starts[start], tmp_path / "storage"))

    return copied
