"""What crashes leave behind is found, named, and mended when that is asked for; what goes on is left alone."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import duckdb
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.types import DaemonHeartbeat
from mlflow import MlflowClient

from dflash_pipeline.assets import doctor_runs
from dflash_pipeline.assets.doctor import examine
from dflash_pipeline.assets.instance import PROCESS_TAG, open_instance, this_process
from dflash_pipeline.contracts.findings import Finding
from dflash_pipeline.contracts.run import Attempt, RunRecord
from dflash_pipeline.launch.early_side import MODULE as MEASURING_MODULE
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, Lifeline
from dflash_pipeline.launch.torchrun import RANK_MODULE
from dflash_pipeline.stages import doctor, doctor_ailment, doctor_processes
from dflash_pipeline.stages.doctor_ailment import lives_since
from dflash_pipeline.stages.doctor_processes import wrong_statuses
from dflash_pipeline.stages.doctor_stores import mlflow_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import save_record
from dflash_pipeline.store.warehouse import Warehouse
from dflash_pipeline.tracking.mlflow_runs import run_status
from dflash_pipeline.tracking.store_faults import store_fault
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


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "CANCELING"])
def test_a_run_that_no_process_begins_is_ended_after_some_minutes(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, status: str
):
    with open_instance(storage) as instance:
        run = create_run_for_test(instance, job_name="a", status=dg.DagsterRunStatus(status))
        create_run_for_test(instance, job_name="on another machine", status=dg.DagsterRunStatus.STARTED)
    assert examine(storage, repair=True) == []
    monkeypatch.setattr(doctor_runs, "START_SECONDS", 0)
    assert kinds(examine(storage, repair=False)) == [("stuck run", "found")]
    assert kinds(examine(storage, repair=True)) == [("stuck run", "repaired")]
    with open_instance(storage) as instance:
        assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE
    assert examine(storage, repair=True) == []


def test_a_run_in_the_queue_is_told_of_while_no_daemon_looks_there(storage: Storage):
    def beat(seconds_ago: float) -> None:
        at = time.time() - seconds_ago
        instance.add_daemon_heartbeat(DaemonHeartbeat(at, QueuedRunCoordinatorDaemon.daemon_type(), "id", []))

    with open_instance(storage) as instance:
        code = RegisteredCodeLocationOrigin("code")
        origin = RemoteJobOrigin(RemoteRepositoryOrigin(code, "__repository__"), "a")
        run = create_run_for_test(instance, job_name="a", status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin)
        assert kinds(examine(storage, repair=False)) == [("queued run", "for a person")]
        beat(400)
        assert kinds(examine(storage, repair=True)) == [("queued run", "for a person")]
        assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.QUEUED
        beat(10)
        assert examine(storage, repair=True) == []


def test_a_process_that_has_the_number_of_an_earlier_one_is_not_taken_for_it():
    born = psutil.Process().create_time()
    assert lives_since(os.getpid(), born + 1)
    assert not lives_since(os.getpid(), born - 3600)


def test_a_slot_of_a_run_that_is_over_is_freed(storage: Storage):
    with open_instance(storage) as instance:
        run = create_run_for_test(instance, job_name="a", status=dg.DagsterRunStatus.SUCCESS)
        slots = instance.event_log_storage
        slots.initialize_concurrency_limit_to_default("training_node")
        assert slots.claim_concurrency_slot("training_node", run.run_id, "trained_drafter").is_claimed
    assert kinds(examine(storage, repair=False)) == [("held slot", "found")]
    assert kinds(examine(storage, repair=True)) == [("held slot", "repaired")]
    with open_instance(storage) as instance:
        assert instance.event_log_storage.get_concurrency_info("training_node").active_slot_count == 0
    assert examine(storage, repair=True) == []


def test_a_slot_of_a_run_that_has_just_ended_is_left_to_the_daemon(storage: Storage):
    with open_instance(storage) as instance:
        run = create_run_for_test(instance, job_name="a", status=dg.DagsterRunStatus.STARTED)
        instance.event_log_storage.initialize_concurrency_limit_to_default("training_node")
        assert instance.event_log_storage.claim_concurrency_slot("training_node", run.run_id, "a").is_claimed
        instance.report_run_failed(run, "it is over")
    assert examine(storage, repair=True) == []


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
    assert kinds(examine(storage, repair=True)) == [("set aside", "for a person")]


def test_what_was_written_before_its_process_was_born_is_left_behind(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """The number of a killed writer is given out again, most often after the machine was started anew."""
    left = storage.root / f".a.json.{os.getpid()}.incomplete"
    left.write_bytes(b"part")
    assert examine(storage, repair=True) == []
    # As if this process had begun an hour after the file's last change.
    monkeypatch.setattr(doctor_ailment, "CLOCK_DRIFT_SECONDS", psutil.Process().create_time() - time.time() - 3600)
    assert kinds(examine(storage, repair=True)) == [("unfinished", "repaired")]
    assert not left.exists()


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
    assert examine(storage, repair=True) == []


def test_an_mlflow_database_of_another_version_is_told_and_not_touched(storage: Storage):
    uri = tracking_uri(storage.root)
    (storage.root / "mlflow").mkdir()
    MlflowClient(uri).search_experiments()
    database = storage.root / "mlflow" / "mlflow.db"
    assert examine(storage, repair=True) == []
    of_another_version(database)
    before = database.read_bytes()
    [found] = examine(storage, repair=True)
    assert (found.kind, found.state) == ("MLflow store", "for a person")
    assert f"mlflow db upgrade {uri}" in found.fix
    database.write_bytes(b"no database" * 1000)
    assert "not a database" in examine(storage, repair=True)[0].what
    database.write_bytes(before)
    assert kinds(examine(storage, repair=True)) == [("MLflow store", "for a person")]


def test_an_mlflow_server_that_does_not_answer_is_asked_once(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert store_fault("http://127.0.0.1:9") == "the server does not answer"
    assert "cannot be read" in (store_fault("postgresql+psycopg2:///nowhere?host=/nowhere") or "")
    assert kinds([ailment.finding for ailment in mlflow_faults({"http://127.0.0.1:9": "no answer"})]) == [
        ("MLflow store", "for a person")
    ]
    monkeypatch.setattr(doctor_processes, "run_status", lambda uri, run: "RUNNING")
    record = RunRecord(run="r", plan="p", target="t", total_steps=3, mlflow_run_id="id")
    save_record(storage.runs / "r" / "run.json", record)
    assert len(list(wrong_statuses(storage, asked=[tracking_uri(storage.root)]))) == 1
    assert list(wrong_statuses(storage, asked=())) == []


@pytest.mark.parametrize("database", ["runs.db", "index.db", "schedules.db"])
def test_a_dagster_database_of_another_version_is_told_and_not_touched(storage: Storage, database: str):
    with open_instance(storage) as instance:
        create_run_for_test(instance, job_name="a", status=dg.DagsterRunStatus.STARTED, tags={PROCESS_TAG: "1@1.00"})
    [path] = storage.dagster_home.rglob(database)
    of_another_version(path)
    [found] = examine(storage, repair=True)
    assert (found.kind, found.state) == ("Dagster store", "for a person")
    assert "dagster instance migrate" in found.fix


def test_a_dagster_database_that_cannot_be_read_is_told(storage: Storage):
    with open_instance(storage):
        pass
    [path] = storage.dagster_home.rglob("runs.db")
    path.write_bytes(b"no database" * 1000)
    [found] = examine(storage, repair=True)
    assert (found.kind, found.state) == ("Dagster store", "for a person")
    assert "not a database" in found.what


def test_settings_that_servers_work_with_are_not_replaced(storage: Storage):
    with open_instance(storage):
        pass
    settings = storage.dagster_home / "dagster.yaml"
    settings.write_text("telemetry: {enabled: false}\n")
    assert examine(storage, repair=True) == []
    assert settings.read_text() == "telemetry: {enabled: false}\n"


def test_other_settings_are_looked_at_where_no_folder_is_yet(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path / "elsewhere"
    own = tmp_path / "own.yaml"
    own.write_text(f"storage: {{sqlite: {{base_dir: {elsewhere}}}}}\n")
    elsewhere.mkdir()
    assert examine(storage, repair=False) == []
    monkeypatch.setenv("DFLASH_DAGSTER_YAML", str(own))
    with open_instance(storage) as instance:
        create_run_for_test(instance, job_name="a", status=dg.DagsterRunStatus.STARTED, tags={PROCESS_TAG: "1@1.00"})
    shutil.rmtree(storage.dagster_home)
    assert kinds(examine(storage, repair=False)) == [("stuck run", "found")]


@pytest.mark.parametrize("name", ["run.json", "launch.json"])
def test_a_record_of_another_version_is_told_and_the_others_are_looked_at(storage: Storage, name: str):
    save_record(storage.runs / "old" / "run.json", RunRecord(run="old", plan="p", target="t", total_steps=3))
    (storage.runs / "old" / name).write_text('{"run": "old", "steps": 3}')
    part = storage.root / f".a.json.{ended_pid()}.incomplete"
    part.write_bytes(b"part")
    found = examine(storage, repair=True)
    assert kinds(found) == [("unfinished", "repaired"), ("unreadable record", "for a person")]
    assert found[1].where == str(storage.runs / "old" / name)


def of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0'")
    connection.close()


def test_no_lock_outlives_its_holder(storage: Storage):
    """The kernel keeps both kinds, that of the lists and DuckDB's: what lies there afterwards holds nobody up."""
    script = (
        "import fcntl, sys, time, duckdb; guard = open(sys.argv[1], 'w'); fcntl.flock(guard, fcntl.LOCK_EX); "
        "held = duckdb.connect(sys.argv[2]); print('held', flush=True); time.sleep(600)"
    )
    Warehouse(storage.warehouse).find_ingestion("none")
    lock = storage.promotions.with_suffix(".lock")
    words = [sys.executable, "-c", script, str(lock), str(storage.warehouse)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    [found] = examine(storage, repair=True)
    assert (found.kind, found.state, found.what) == ("warehouse", "for a person", f"process {process.pid} holds it")
    process.kill()
    process.communicate()
    assert lock.exists()
    assert examine(storage, repair=True) == []
    with lock.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


@pytest.fixture(params=[RANK_MODULE, MEASURING_MODULE])
def rank(storage: Storage, tmp_path: Path, request) -> Iterator[tuple[Lifeline, subprocess.Popen[bytes]]]:
    """A process that looks like a rank or what measures beside it, deaf to SIGTERM, and its lifeline, held here."""
    lifeline = Lifeline(tmp_path)
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    words = ["-c", script, request.param, f"{storage.runs}/some-run/launch.json"]
    environment = {**os.environ, LIFELINE_VARIABLE: str(lifeline.path)}
    process = subprocess.Popen([sys.executable, *words], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield lifeline, process
    process.kill()
    process.communicate()
    lifeline.close()


def test_a_rank_whose_launcher_is_gone_is_stopped_and_others_are_not(
    storage: Storage, rank, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor_processes, "KILL_AFTER_SECONDS", 0.2)
    lifeline, process = rank
    assert examine(storage, repair=True) == []
    assert psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE
    lifeline.close()
    assert kinds(examine(storage, repair=False)) == [("orphaned rank", "found")]
    assert process.poll() is None
    assert kinds(examine(storage, repair=True)) == [("orphaned rank", "repaired")]
    assert not psutil.pid_exists(process.pid)
    assert examine(storage, repair=True) == []


def test_what_cannot_be_mended_says_why_and_stays_found(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    left = storage.root / f".plan.{ended_pid()}.incomplete"
    left.mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    [found] = examine(storage, repair=True)
    assert (found.kind, found.state) == ("unfinished", "found")
    assert "not mended: [Errno 13] Permission denied" in found.what


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
