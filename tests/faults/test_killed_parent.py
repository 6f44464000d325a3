"""The command itself is killed: its ranks end too, and the next run finds nothing in its way."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dflash_pipeline.assets.instance import PROCESS_TAG, open_instance, settle_dead_runs, this_process
from dflash_pipeline.store.layout import Storage
from tests.faults.chain import Reference, command, environment, left_in, run_chain
from tests.faults.leftovers import nothing_holds, processes_of
from tests.faults.points import Start

ENDED_SECONDS = 30.0


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seen", ["launch.json", "events.jsonl"])
def test_ranks_die_with_the_command(seen: str, reference: Reference, start_from: Callable[[Start], Path]) -> None:
    storage = start_from("planned")
    process = subprocess.Popen(
        command(), env=environment(storage), cwd=storage.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert until(lambda: bool(list(storage.glob(f"runs/*/{seen}"))), seconds=120)
        # The ranks are there: torchrun, and at least one beside it.
        assert until(lambda: len(processes_of(storage)) >= 3, seconds=60)
    finally:
        process.kill()
        process.wait()
    assert until(lambda: not processes_of(storage), seconds=ENDED_SECONDS), processes_of(storage)
    assert nothing_holds(storage) != []
    ended = run_chain(storage)
    assert ended.exit_code == 0, ended.errors
    assert left_in(storage) == reference.left
    assert nothing_holds(storage) == []


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # `open_instance` sets it for the process: undone at the end.
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with open_instance(Storage(root=tmp_path / "storage")) as instance:
        yield instance


def test_a_dead_run_is_settled_and_its_slot_freed(instance: dg.DagsterInstance) -> None:
    @dg.job
    def nothing() -> None:
        pass

    def started(process: str) -> str:
        run = instance.create_run_for_job(nothing, status=dg.DagsterRunStatus.STARTED, tags={PROCESS_TAG: process})
        return run.run_id

    process = subprocess.Popen(["sleep", "0"])
    dead, alive = started(f"{process.pid}@1.00"), started(this_process())
    process.wait()
    storage = instance.event_log_storage
    storage.set_concurrency_slots("warehouse", 2)
    assert storage.claim_concurrency_slot("warehouse", dead, "step").is_claimed
    assert storage.claim_concurrency_slot("warehouse", alive, "step").is_claimed
    assert settle_dead_runs(instance) == [dead]
    assert [slot.run_id for slot in storage.get_concurrency_info("warehouse").claimed_slots] == [alive]
    statuses = {run.run_id: run.status for run in instance.get_runs()}
    assert statuses == {dead: dg.DagsterRunStatus.FAILURE, alive: dg.DagsterRunStatus.STARTED}
    assert settle_dead_runs(instance) == []


def until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
