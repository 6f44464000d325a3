"""The four servers of `dflash ui` with short intervals, and what a test does to the processes behind them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psutil
import yaml

from dflash_pipeline.assets.automation import TRAINS
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.launch.torchrun import AGENT_MODULE
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_runs import run_status
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.checkpoint import CheckpointState, newest_whole_checkpoint
from dflash_pipeline.training.event_log import read_events
from tests.browser.conftest import Pages, start_ui
from tests.conftest import ROOT
from tests.daemon.page import Page
from tests.launch.processes import until

PATIENCE = 200.0
"""Seconds for what takes as long as the machine likes."""
STEPS = 8
SHORT = {"poll_interval_seconds": 2, "free_slots_after_run_end_seconds": 8}
"""Of dagster.yaml's run_monitoring, so that a test waits seconds. Everything else is as a user has it."""


def short_settings(path: Path) -> Path:
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    settings["run_monitoring"] |= SHORT
    path.write_text(yaml.safe_dump(settings))
    return path


@dataclass(frozen=True, kw_only=True)
class Served:
    """The pages, the storage behind them, and the processes of both."""

    pages: Pages
    page: Page
    storage: Storage

    def server(self, *words: str) -> psutil.Process:
        """The one whose command line has all the words."""
        family = psutil.Process(self.pages.process.pid).children(recursive=True)
        [found] = [process for process in family if set(words) <= set(words_of(process))]
        return found

    def kill_servers(self) -> None:
        """All at once, and the process of the run with them, as when there is no memory left."""
        top = psutil.Process(self.pages.process.pid)
        ranks = {process.pid for process in self.ranks()}
        for process in [top, *top.children(recursive=True)]:
            if process.pid not in ranks:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def train(self, learning_rate: float) -> str:
        """`trained_drafter` as the page starts it: a training of its own for every learning rate."""
        return self.page.launch(choices={"learning_rate": learning_rate}, tags=TRAINS, assets=["trained_drafter"])

    def tag(self, run_id: str, tags: dict[str, str]) -> None:
        """Of a run that is there already; the daemon looks at them each time."""
        with dg.DagsterInstance.from_config(str(self.storage.dagster_home)) as instance:
            instance.add_run_tags(run_id, tags)

    def status(self, run_id: str) -> str:
        return str(self.page.run(run_id)["status"])

    def retries(self, run_id: str) -> list[str]:
        """Runs that the daemon has started because this one failed."""
        return [run["runId"] for run in self.page.runs() if run["tags"].get("dagster/parent_run_id") == run_id]

    def agent(self) -> psutil.Process:
        """torchrun's process."""
        [found] = [process for process in self.ranks() if AGENT_MODULE in words_of(process)]
        return found

    def worker(self) -> psutil.Process:
        """The process that works on the run that trains."""
        found = self.agent().parent()
        assert found is not None
        return found

    def ranks(self) -> list[psutil.Process]:
        """torchrun and its ranks, of any training here."""
        return [p for p in psutil.process_iter() if any(w.startswith(f"{self.storage.runs}/") for w in words_of(p))]

    def record(self, run_dir: Path) -> RunRecord:
        return load_record(run_dir / "run.json", RunRecord)

    def mlflow_status(self, run_dir: Path) -> str | None:
        return run_status(tracking_uri(self.storage.root), self.record(run_dir).mlflow_run_id or "")

    def checkpoint(self, run_dir: Path) -> int:
        """The step of the newest checkpoint that is whole, 0 without one."""
        found = newest_whole_checkpoint(run_dir / "checkpoints")
        return load_record(found / "state.json", CheckpointState).global_step if found else 0

    def under_way(self, before: set[Path]) -> Path:
        """The folder of the training that appeared since, once it has done some steps."""
        assert until(lambda: folders(self.storage) - before, seconds=PATIENCE)
        [run_dir] = folders(self.storage) - before
        assert until(lambda: steps_done(run_dir) >= STEPS, seconds=PATIENCE)
        # Charts are made in the background.
        assert until(lambda: self.record(run_dir).mlflow_run_id, seconds=PATIENCE)
        return run_dir

    def held(self) -> int:
        """How many trainings have the devices."""
        pools = self.page.ask("{ instance { concurrencyLimits { concurrencyKey activeSlotCount } } }")["instance"]
        [node] = [pool for pool in pools["concurrencyLimits"] if pool["concurrencyKey"] == NODE]
        return int(node["activeSlotCount"])


def folders(storage: Storage) -> set[Path]:
    """Of trainings that were started."""
    return {path.parent for path in storage.runs.glob("*/run.json")}


def steps_done(run_dir: Path) -> int:
    return sum(event["kind"] == "step" for event in read_events(run_dir / "events.jsonl"))


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def served(recipe_file: Path, storage: Storage, folder: Path, *, ports: int) -> Iterator[Served]:
    """`dflash ui` while the block runs, if nothing in it ends the servers before; what they say is in `folder`."""
    os.environ["DFLASH_DAGSTER_YAML"] = str(short_settings(folder / "dagster.yaml"))
    options = ("--dagster-port", str(ports), "--mlflow-port", str(ports + 50))
    try:
        pages = start_ui(recipe_file, storage.root, *options, said=folder / f"said-{ports}")
    finally:
        del os.environ["DFLASH_DAGSTER_YAML"]
    try:
        yield Served(pages=pages, page=_loaded(pages.dagster), storage=storage)
    finally:
        pages.process.send_signal(signal.SIGINT)
        pages.process.wait(90)


def _loaded(address: str) -> Page:
    """The page answers a moment before it shows the code, on a busy machine."""
    found: list[Page] = []

    def shown() -> bool:
        with suppress(ValueError):
            found.append(Page(address))
        return bool(found)

    assert until(shown, seconds=PATIENCE)
    return found[0]
