"""A real run of the chain with as many ranks as the case says: asked to stop, then with its command killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import psutil

from dflash_pipeline.assets.instance import open_instance, settle_dead_runs
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.training.checkpoint import list_checkpoints
from dflash_pipeline.training.event_log import read_events
from tests.conftest import write_recipe
from tests.faults.leftovers import nothing_holds, processes_of

ROOT = Path(__file__).parents[2]
PROGRAM = """
from dflash_pipeline.launch import torchrun
torchrun.RANK_MODULE = "tests.cases.slow_to_stop"
from dflash_pipeline.cli import main
main()
"""
SIGNALS = {"polite stop": signal.SIGTERM, "the launching process is killed outright": signal.SIGKILL}
START_SECONDS = 900.0
"""Ranks share the cores: each loads a model library, which takes many seconds of a core."""
LOOKS = (30, 60)
"""Seconds after which the processes left are counted."""


def observe(case: Mapping[str, Any]) -> dict[str, Any]:
    count = re.search(r"(\d+) worker", case["launch"])
    if count is None or not set(case["variants"]) <= set(SIGNALS):
        return {"not_observed": "no known form of a cancelling case"}
    ranks = int(count[1])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        recipe = write_recipe(
            Path(folder) / "recipe.yaml",
            batching={"slots_per_step": ranks, "epochs": 64},
            training={"num_ranks": ranks},
        )
        storage = Storage(root=Path(folder) / "storage")
        # One storage: the second run goes on where the first was stopped.
        return {
            variant: _stopped(recipe, storage, SIGNALS[variant], steps=case["cancel_at_step"])
            for variant in case["variants"]
        }


def _stopped(recipe: Path, storage: Storage, number: signal.Signals, *, steps: int) -> dict[str, Any]:
    root, enough = storage.root, _steps_done(storage) + steps
    with (root.parent / f"{number.name}.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "run", str(recipe), "--json"],
            env={**os.environ, "DFLASH_STORAGE": str(root), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
        try:
            if not _comes_true(lambda: _steps_done(storage) >= enough or process.poll() is not None, START_SECONDS):
                return {"not_observed": f"no step {enough} within {START_SECONDS:.0f} s"}
            if process.poll() is not None:
                log.seek(0)
                return {"not_observed": f"the run ended by itself: {log.read()[-2000:]}"}
            ranks = sum(_is_rank(pid) for pid in processes_of(root))
            process.send_signal(number)
            return {"ranks": ranks, **_afterwards(process, storage)}
        finally:
            for pid in processes_of(root):
                os.kill(pid, signal.SIGKILL)
            process.wait()


def _afterwards(process: subprocess.Popen[bytes], storage: Storage) -> dict[str, Any]:
    began = time.monotonic()
    gone: float | None = None
    left = {}
    for look in LOOKS:
        if _comes_true(lambda: process.poll() is not None and not processes_of(storage.root), look, since=began):
            gone = gone or time.monotonic() - began
        left[f"after {look} s"] = len(processes_of(storage.root))
    newest = list_checkpoints(storage.runs / _run(storage) / "checkpoints")[:1]
    facts = {
        "exit_code": process.poll(),
        "seconds_until_no_process_was_left": gone,
        "processes_left": left,
        "steps_done": _steps_done(storage),
        "newest_checkpoint": newest[0].name if newest else None,
        "its_faults": folder_faults(newest[0]) if newest else None,
        "database_is_free": _is_free(storage.warehouse),
        "dagster_status": _status(storage),
    }
    with open_instance(storage) as instance:
        settle_dead_runs(instance)  # As the next command does before anything else.
    return facts | {"dagster_status_at_the_next_command": _status(storage), "still_held": nothing_holds(storage.root)}


def _comes_true(condition: Callable[[], bool], seconds: float, *, since: float | None = None) -> bool:
    deadline = (time.monotonic() if since is None else since) + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _is_rank(pid: int) -> bool:
    try:
        return "tests.cases.slow_to_stop" in psutil.Process(pid).cmdline()[:4]
    except psutil.Error:
        return False


def _is_free(warehouse: Path) -> bool:
    try:
        duckdb.connect(warehouse).close()
    except duckdb.IOException:
        return False
    return True


def _status(storage: Storage) -> str:
    with open_instance(storage) as instance:
        return instance.get_runs(limit=1)[0].status.value


def _run(storage: Storage) -> str:
    """The one run there is."""
    [folder] = storage.runs.iterdir()
    return folder.name


def _steps_done(storage: Storage) -> int:
    logs = storage.runs.glob("*/events.jsonl")
    return len({event["global_step"] for log in logs for event in read_events(log) if event["kind"] == "step"})
