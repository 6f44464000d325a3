"""A long training that a person ends on its page, and starts again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_runs import run_status
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.checkpoint import CheckpointState, newest_whole_checkpoint
from dflash_pipeline.training.event_log import read_events
from tests.browser.conftest import Picture, Worked
from tests.browser.walk import ENDED, launch, open_launchpad
from tests.launch.processes import until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS_TO_END = 30


def test_a_training_is_ended_on_its_page_and_goes_on_when_started_again(worked: Worked, page: Any, picture: Picture):
    storage, before = worked.chain.storage, set(worked.chain.storage.runs.iterdir())
    open_launchpad(page, worked.pages.dagster, "epochs: 24")
    launch(page)
    page.wait_for_url("**/runs/*")
    [run_dir] = _appeared(storage.runs, before)
    assert until(lambda: len(_steps(run_dir)) >= 3, seconds=100)

    page.get_by_role("button", name="Terminate").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Terminate").click()
    began = time.monotonic()
    page.get_by_text("Canceled", exact=True).first.wait_for(timeout=1000 * SECONDS_TO_END)
    assert until(lambda: _ranks(run_dir) == [], seconds=SECONDS_TO_END - (time.monotonic() - began))
    page.get_by_text("Stack Trace:").first.wait_for()
    picture("terminated", above="Stack Trace:")
    record = load_record(run_dir / "run.json", RunRecord)
    checkpoint = newest_whole_checkpoint(run_dir / "checkpoints")
    assert checkpoint is not None
    saved = load_record(checkpoint / "state.json", CheckpointState).global_step
    assert [a.status for a in record.attempts] == ["stopped"]
    assert saved == record.attempts[0].last_step == len(_steps(run_dir))
    assert run_status(tracking_uri(storage.root), record.mlflow_run_id or "") == "KILLED"

    open_launchpad(page, worked.pages.dagster, "epochs: 24")
    launch(page)
    page.wait_for_url("**/runs/*")
    page.get_by_text("Success", exact=True).first.wait_for(timeout=ENDED)
    record = load_record(run_dir / "run.json", RunRecord)
    assert [(a.status, a.first_step) for a in record.attempts] == [("stopped", 0), ("finished", saved)]
    assert run_status(tracking_uri(storage.root), record.mlflow_run_id or "") == "FINISHED"


def _appeared(runs: Path, before: set[Path]) -> set[Path]:
    assert until(lambda: set(runs.iterdir()) - before, seconds=100)
    return set(runs.iterdir()) - before


def _steps(run_dir: Path) -> list[int]:
    return [event["global_step"] for event in read_events(run_dir / "events.jsonl") if event["kind"] == "step"]


def _ranks(run_dir: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(run_dir) in " ".join(process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
