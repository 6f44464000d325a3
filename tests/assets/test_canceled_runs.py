"""A run that somebody stops was canceled: the page must not call it a failure, as it must the one that fails."""

import os
import signal
import time

import dagster as dg
import pytest

from dflash_pipeline.assets import whole_run
from dflash_pipeline.assets.automation import whole_chain
from dflash_pipeline.assets.drafter import LaunchChoices
from dflash_pipeline.assets.instance import open_instance
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.assets.terminal_log import terminal_log
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage
from tests.conftest import ROOT


@pytest.fixture
def workbench(tmp_path, monkeypatch):
    # `open_instance` sets it for the process: undone at the end.
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return Workbench(recipe=load_recipe(ROOT / "recipes" / "demo.yaml"), storage=Storage(root=tmp_path))


def run(workbench, monkeypatch, act):
    """The chain in a word: training alone, and that does what `act` does."""

    @dg.asset
    def trained_drafter(config: LaunchChoices) -> None:
        act()

    def definitions_for(workbench: Workbench) -> dg.Definitions:
        job = whole_chain(workbench.recipe)
        return dg.Definitions(assets=[trained_drafter], jobs=[job], loggers={"terminal": terminal_log})

    monkeypatch.setattr(whole_run, "definitions_for", definitions_for)
    return whole_run.run_whole_chain(workbench, fresh=False, plan_only=False)


def statuses(workbench) -> list[str]:
    with open_instance(workbench.storage) as instance:
        return [run.status.value for run in instance.get_runs()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_was_canceled(workbench, monkeypatch, number):
    def ask() -> None:
        os.kill(os.getpid(), number)
        time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        run(workbench, monkeypatch, ask)
    assert statuses(workbench) == ["CANCELED"]


def test_a_run_that_fails_has_failed(workbench, monkeypatch):
    def refuse() -> None:
        raise Refused("no", where="here", fix="do it")

    with pytest.raises(Refused):
        run(workbench, monkeypatch, refuse)
    assert statuses(workbench) == ["FAILURE"]
