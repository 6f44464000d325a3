"""What crashes leave behind is found, named, and mended when that is asked for; what goes on is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import duckdb
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.test_utils import create_run_for_test
from mlflow import MlflowClient

from dflash_pipeline.assets.doctor import examine
from dflash_pipeline.assets.instance import PROCESS_TAG, open_instance, this_process
from dflash_pipeline.contracts.findings import Finding
from dflash_pipeline.contracts.run import Attempt, RunRecord
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, Lifeline
from dflash_pipeline.launch.torchrun import RANK_MODULE
from dflash_pipeline.stages import doctor
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import save_record
from dflash_pipeline.store.warehouse import Warehouse
from dflash_pipeline.tracking.mlflow_runs import run_status
from dflash_pipeline.tracking.store_uri import tracking_uri
from tests.conftest import ROOT


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setenv("DAGSTER_HOME", "")
    monkeypatch.setattr(doctor, "LEAST_FREE", 0)
    root = tmp_path / "storage"
    root.mkdir()
    return Storage(root=root)


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.state) for finding in findings]


def ended_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_nothing_is_found_where_nothing_is_wrong(storage: Storage):
    with open_instance(storage):
        pass
    Warehouse(storage.warehouse).find_ingestion("none")
    assert examine(storage, repair=True) == []


def test_a_stuck_run_is_ended_and_one_that_is_worked_on_goes_on(storage: Storage):
    with open_instance(storage) as instance:
        dead = create_run_for_test(
            instance, job_name="a", status=dg.DagsterRunStatus.STARTED, tags={PROCESS_TAG: f"{ended_pid()}@1.00"}
        )
        create_run_for_test(
            instance, job_name="b", status=dg.DagsterRunStatus.STARTED, tags={PROCESS_TAG: this_process()}
        )
        create_run_for_test(instance, job_name="c", status=dg.DagsterRunStatus.STARTED)
    [found] = examine(storage, repair=False)
    assert (found.kind, found.state, found.where) == ("stuck run", "found", f"run {dead.run_id}")
    assert kinds(examine(storage, repair=True)) == [("stuck run", "repaired")]
    with open_instance(storage) as instance:
        assert instance.get_run_by_id(dead.run_id).status is dg.DagsterRunStatus.FAILURE
    assert examine(storage, repair=False) == []


def test_a_run_of_dagsters_own_launcher_is_judged_by_the_process_that_it_told_of(storage: Storage):
    with open_instance(storage) as instance:
        gone, here = (
            create_run_for_test(instance, job_name=name, status=dg.DagsterRunStatus.STARTED) for name in ("a", "b")
        )
        for run, pid in ((gone, ended_pid()), (here, os.getpid())):
            data = EngineEventData({"pid": dg.MetadataValue.text(str(pid))})
            instance.report_engine_event("Started process for run.", run, data)
    [found] = examine(storage, repair=False)
    assert found.where == f"run {gone.run_id}"


def test_a_slot_of_a_run_that_is_over_is_freed(storage: Storage):
    with open_instance(storage) as instance:
        run = create_run_for_test(instance, job_name="a", status=dg.DagsterRunStatus.SUCCESS)
        slots = instance.event_log_storage
        slots.initialize_concurrency_limit_to_default("gpu_node")
        assert slots.claim_concurrency_slot("gpu_node", run.run_id, "trained_drafter").is_claimed
    assert kinds(examine(storage, repair=False)) == [("held slot", "found")]
    assert kinds(examine(storage, repair=True)) == [("held slot", "repaired")]
    with open_instance(storage) as instance:
        assert instance.event_log_storage.get_concurrency_info("gpu_node").active_slot_count == 0


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(storage: Storage):
    folder, file = (
        storage.root / f".plan.{ended_pid()}.incomplete",
        storage.root / f".a.json.{ended_pid()}.incomplete",
    )
    living = storage.root / f".b.json.{os.getpid()}.incomplete"
    folder.mkdir()
    (folder / "epoch.parquet").write_bytes(b"part")
    for path in (file, living):
        path.write_bytes(b"part")
    damaged = storage.root / "warehouse.duckdb.damaged-1"
    damaged.write_bytes(b"")
    assert kinds(examine(storage, repair=True)) == [
        ("unfinished", "repaired"),
        ("unfinished", "repaired"),
        ("set aside", "for a person"),
    ]
    assert not folder.exists()
    assert not file.exists()
    assert living.exists()
    assert damaged.exists()


def test_a_run_that_mlflow_believes_to_go_on_is_ended_there(storage: Storage):
    uri = tracking_uri(storage.root)
    storage.runs.mkdir()
    (storage.root / "mlflow").mkdir()
    client = MlflowClient(uri)
    experiment = client.create_experiment("e", artifact_location=(storage.root / "artifacts").as_uri())
    for name, status in (("killed", "running"), ("done", "finished")):
        run_id = client.create_run(experiment).info.run_id
        attempt = Attempt(number=1, num_ranks=1, first_step=0, status=status, last_step=3)
        record = RunRecord(run=name, plan="p", target="t", total_steps=3, mlflow_run_id=run_id, attempts=(attempt,))
        save_record(storage.runs / name / "run.json", record)
    assert kinds(examine(storage, repair=False)) == [("wrong status", "found")] * 2
    assert kinds(examine(storage, repair=True)) == [("wrong status", "repaired")] * 2
    ended = {
        path.parent.name: run_status(uri, json.loads(path.read_text())["mlflow_run_id"])
        for path in storage.runs.glob("*/run.json")
    }
    assert ended == {"killed": "KILLED", "done": "FINISHED"}


@pytest.mark.parametrize("damage", ["version", "bytes"])
def test_a_warehouse_that_cannot_be_read_is_told_and_left_as_it_is(storage: Storage, damage: str):
    Warehouse(storage.warehouse).find_ingestion("none")
    if damage == "version":
        with duckdb.connect(str(storage.warehouse)) as connection:
            connection.execute("UPDATE schema_version SET version = 1")
    else:
        storage.warehouse.write_bytes(b"no database" * 1000)
    before = storage.warehouse.read_bytes()
    [found] = examine(storage, repair=True)
    assert (found.kind, found.state) == ("warehouse", "for a person")
    assert storage.warehouse.read_bytes() == before


def test_a_list_that_the_next_run_would_stop_at_is_told(storage: Storage):
    storage.promotions.write_text("no decision\n")
    storage.exclusions.write_text("[]\n")
    assert kinds(examine(storage, repair=True)) == [("damaged list", "for a person")] * 2
    assert storage.promotions.read_text() == "no decision\n"


def test_little_room_is_told(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "LEAST_FREE", 2**60)
    assert kinds(examine(storage, repair=False)) == [("low disk", "for a person")]


@pytest.fixture
def rank(storage: Storage, tmp_path: Path) -> Iterator[tuple[Lifeline, subprocess.Popen[bytes]]]:
    """A process that looks like a rank and its lifeline, which this process holds."""
    lifeline = Lifeline(tmp_path)
    words = ["-c", "import time; time.sleep(600)", RANK_MODULE, f"{storage.runs}/some-run/launch.json"]
    process = subprocess.Popen([sys.executable, *words], env={**os.environ, LIFELINE_VARIABLE: str(lifeline.path)})
    yield lifeline, process
    process.kill()
    process.wait()
    lifeline.close()


def test_a_rank_whose_launcher_is_gone_is_stopped_and_others_are_not(storage: Storage, rank):
    lifeline, process = rank
    assert examine(storage, repair=True) == []
    assert psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE
    lifeline.close()
    assert kinds(examine(storage, repair=False)) == [("orphaned rank", "found")]
    assert process.poll() is None
    assert kinds(examine(storage, repair=True)) == [("orphaned rank", "repaired")]
    assert not psutil.pid_exists(process.pid)


def test_the_command_tells_and_its_code_says_whether_something_is_left(storage: Storage):
    (storage.root / f".a.json.{ended_pid()}.incomplete").write_bytes(b"part")

    def asked(*options: str) -> tuple[int, dict]:
        program = [sys.executable, "-c", "from dflash_pipeline.cli import main; main()", "doctor", "--json", *options]
        environment = {**os.environ, "DFLASH_STORAGE": str(storage.root)}
        done = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    code, answer = asked()
    assert (code, answer["ok"], answer["findings"][0]["kind"]) == (1, False, "unfinished")
    code, answer = asked("--repair")
    assert (code, answer["ok"], answer["findings"][0]["state"]) == (0, True, "repaired")
