"""MLflow's own page of two runs compared: does it answer what changed, and did it help?"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from dflash_pipeline.assets.pages import _mlflow_command
from dflash_pipeline.launch.run_facts import more_settings, run_facts
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri
from tests.browser.conftest import Picture
from tests.browser.walk import close_assistant
from tests.stages.compared_runs import launch_of
from tests.tracking.logged_run import LoggedRun
from tests.tracking.training_records import epoch, step

pytestmark = pytest.mark.browser
SNAPSHOTS = ("4be1c0d29e0f1a2b", "9c02a7f3d4e5f607")


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    """Two runs on an MLflow server of their own."""

    address: str
    run_ids: tuple[str, str]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRuns]:
    """As a rank tells them, but for the training: other snapshots and learning rates, and the second falls lower."""
    storage = Storage(root=tmp_path_factory.mktemp("two") / "storage")
    launch = launch_of(tmp_path_factory.mktemp("launch"))
    run_ids = []
    for number, (snapshot, rate) in enumerate(zip(SNAPSHOTS, (0.0006, 0.001), strict=True), start=1):
        run = LoggedRun(
            tracking_uri(storage.root),
            storage.runs / f"run{number}",
            experiment="chat",
            artifact_location=artifact_location(storage.root),
            tags={"dflash.run": f"run{number}"},
        )
        settings = more_settings(launch) | {"learning_rate": rate, "snapshot": snapshot, "plan": f"plan{number}"}
        run.start({**settings, **run_facts(replace(launch, recipe=f"recipe{number}"))})
        for done in range(1, 61):
            run.tell(replace(step(done, loss=5.0 / (done + 5 * number)), run_cost_fraction=done / 60))
        run.tell(epoch(60))
        run.end("finished")
        run_ids.append(run.run_id)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"} | {
        "MLFLOW_BACKEND_STORE_URI": tracking_uri(storage.root)
    }
    server = subprocess.Popen(
        _mlflow_command("127.0.0.1", port, artifact_location(storage.root)), env=environment, start_new_session=True
    )
    try:
        wait_until_open(f"http://127.0.0.1:{port}/health")
        yield TwoRuns(address=f"http://127.0.0.1:{port}", run_ids=(run_ids[0], run_ids[1]))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def test_the_compare_page_shows_what_changed_and_what_came_of_it(two_runs: TwoRuns, page: Any, picture: Picture):
    page.goto(f"{two_runs.address}/#/compare-runs?runs={json.dumps(two_runs.run_ids)}&experiments=%5B%221%22%5D")
    for text in ("learning_rate", "0.0006", "0.001", *SNAPSHOTS, "recipe.digest", "git.revision", "train/loss"):
        page.get_by_text(text, exact=True).first.wait_for()
    page.get_by_text("Show diff only").first.click()
    page.get_by_text("weight_decay", exact=True).wait_for(state="detached")
    assert page.get_by_text("learning_rate", exact=True).last.is_visible()
    close_assistant(page)
    page.set_viewport_size({"width": 1400, "height": 1250})
    page.get_by_text("train/loss", exact=True).last.wait_for()
    picture("mlflow-compare")


def test_the_charts_of_one_run_show_its_curves(two_runs: TwoRuns, page: Any, picture: Picture):
    page.goto(f"{two_runs.address}/#/experiments/1/runs/{two_runs.run_ids[0]}/model-metrics")
    close_assistant(page)
    page.get_by_placeholder("Search metric charts").fill("train/")
    page.get_by_text(re.compile(r"^progress")).first.wait_for(state="detached")
    for curve in ("loss", "learning_rate"):
        page.get_by_text(curve, exact=True).first.wait_for()
    page.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for(state="attached")
    picture("mlflow-run")


def test_the_snapshot_is_the_dataset_of_the_run(two_runs: TwoRuns, page: Any):
    page.goto(f"{two_runs.address}/#/experiments/1/runs/{two_runs.run_ids[0]}")
    page.get_by_text("chat/snapshot").first.wait_for()
    page.get_by_text(SNAPSHOTS[0]).first.wait_for()


def wait_until_open(address: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            with urlopen(address):
                return
        except (URLError, ConnectionError):
            time.sleep(0.3)
    pytest.fail(f"{address} does not answer")
