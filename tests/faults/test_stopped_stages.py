"""The command is ended in the middle of a stage: nothing of it is left within 30 s, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dflash_pipeline.assets.doctor import examine
from dflash_pipeline.assets.instance import open_instance
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.launch.early_side import MODULE as MEASURING_MODULE
from dflash_pipeline.stages import doctor
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_runs import run_status
from dflash_pipeline.tracking.store_uri import tracking_uri
from tests.faults.chain import Reference, command, environment, left_in, run_chain
from tests.faults.leftovers import nothing_holds, processes_of
from tests.faults.points import Start
from tests.launch.processes import until

ENDED_SECONDS = 30.0
SIDE_PROCESS = "multiprocessing.spawn"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Where a command is when the signal comes: held at a point, or while processes beside it are."""

    start: Start
    hold: str = ""
    beside: str = ""
    """Word of the command line of processes that must be there; without a point they are what is held."""
    options: tuple[str, ...] = ()
    status: str | None = None
    """That MLflow gives the training's run after a signal that can be answered; None: there is none yet."""


MOMENTS = {
    "tokenising": Moment(start="empty", hold="snapshot.after-chunk"),
    "writing tokens": Moment(start="empty", hold="snapshot.before-hash"),
    "planning": Moment(start="empty", hold="manifest.after-write"),
    "training, measured beside": Moment(
        start="planned",
        hold="events.after-append:4",
        beside=MEASURING_MODULE,
        options=("--set", "early.enabled=true", "--set", "early.every_steps=1"),
        status="KILLED",
    ),
    "exporting": Moment(start="trained", hold="export.before-hash"),
    "measuring acceptance": Moment(
        start="trained", beside=SIDE_PROCESS, options=("--set", "evaluation.num_processes=2")
    ),
}


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("name", MOMENTS)
def test_ended_within_a_stage_and_run_again(
    name: str,
    number: signal.Signals,
    reference: Reference,
    start_from: Callable[[Start], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = MOMENTS[name]
    monkeypatch.setattr(doctor, "LEAST_FREE", 0)
    monkeypatch.setenv("DAGSTER_HOME", "")  # `open_instance` sets it for the process: undone at the end.
    storage = start_from(moment.start)
    answer = end_within(moment, storage, number)
    killed = number == signal.SIGKILL
    assert answer["exit_code"] == (-signal.SIGKILL if killed else 130), answer

    if killed:
        found = examine(Storage(root=storage), repair=True)
        assert {finding.state for finding in found} == {"repaired"}
        assert "stuck run" in {finding.kind for finding in found}
    else:
        with open_instance(Storage(root=storage)) as instance:
            assert instance.get_runs(limit=1)[0].status.value == "CANCELED"
    if moment.status is not None:
        [record] = [load_record(path, RunRecord) for path in storage.glob("runs/*/run.json")]
        assert run_status(tracking_uri(storage), record.mlflow_run_id or "") == moment.status
    assert examine(Storage(root=storage), repair=False) == []
    assert nothing_holds(storage) == []

    ended = run_chain(storage, *moment.options)
    assert ended.exit_code == 0, ended.errors
    assert left_in(storage) == reference.left


def end_within(moment: Moment, storage: Path, number: signal.Signals) -> dict[str, object]:
    """The command's exit code and what it said, once nothing that was started with its storage is left."""
    process = subprocess.Popen(
        command(*moment.options),
        env=environment(storage, f"hold:{moment.hold}" if moment.hold else ""),
        cwd=storage.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        held = until_held(moment, storage, process)
        process.send_signal(number)
        for pid in held:
            os.kill(pid, signal.SIGCONT)
        began = time.monotonic()
        out, errors = process.communicate(timeout=ENDED_SECONDS)
        left = ENDED_SECONDS - (time.monotonic() - began)
        assert until(lambda: not processes_of(storage), seconds=left), having(storage, "")
    finally:
        for pid in processes_of(storage):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    return {"exit_code": process.returncode, "answer": json.loads(out) if out.strip() else {}, "errors": errors}


def until_held(moment: Moment, storage: Path, process: subprocess.Popen[str]) -> list[int]:
    """Waits until the moment has come; the processes that are stopped then."""

    if moment.hold:
        assert until(lambda: having(storage, "", psutil.STATUS_STOPPED), seconds=120), process.poll()
        assert until(lambda: having(storage, moment.beside), seconds=60)
        return [p.pid for p in having(storage, "", psutil.STATUS_STOPPED)]
    assert until(lambda: len(having(storage, moment.beside)) >= 2, seconds=120), process.poll()
    held = having(storage, moment.beside)
    for one in held:
        one.suspend()
    return [p.pid for p in held]


def having(storage: Path, word: str, *statuses: str) -> list[psutil.Process]:
    """Processes of a storage with a word in their command line and, if any are given, one of the statuses."""
    found = []
    for pid in processes_of(storage):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if word in " ".join(process.cmdline()) and (not statuses or process.status() in statuses):
                found.append(process)
    return found
