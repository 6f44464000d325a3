"""What telling MLflow costs a run, and whether the page of a long run stays usable.

    python bench/tracking.py outages               # R12: a server that is down, silent, broken, slow
    python bench/tracking.py volume                # 115,000 steps, thinned as by default
    python bench/tracking.py volume --points 0     # every step; --steps scales it down

`outages` tells a run of 200 steps of 20 ms to each kind of server. `volume` writes the event log of a run, sends it to
a new SQLite store as a run does, serves that with MLflow's own server, and times the calls that the page of the run
makes: the table of runs, the run with its latest values, and the histories of all of its charts.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import requests

sys.path.insert(0, str(Path(__file__).parents[1]))

from dflash_pipeline.contracts.events import StepRecord
from dflash_pipeline.launch.rank_trackers import Trackers
from dflash_pipeline.tracking.mlflow_runs import RunTemplate
from dflash_pipeline.tracking.mlflow_tracker import MlflowTracker
from dflash_pipeline.tracking.replay import End, replay
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT, artifact_location, tracking_uri
from dflash_pipeline.training.event_log import EventLog
from dflash_pipeline.training.step_table import write_step_table
from tests.cases.mlflow_stub import BROKEN, REFUSES, SILENT, SLOW, UP, FailingServer
from tests.tracking.training_records import step

STEPS, POINTS, RANKS = 115_000, 5000, 8
OUTAGE_STEPS, STEP_SECONDS = 200, 0.02
PATIENCE_SECONDS = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("outages", "volume"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--points", type=int, default=POINTS, help="a metric, at most; 0 for every step")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ.update(CLIENT_ENVIRONMENT)
    if given.what == "outages":
        outages()
    else:
        volume(given.steps, given.points)


def outages() -> None:
    print("| server | share of the run inside tracker calls | longest call, s | run ended after, s |")
    print("|---|---|---|---|")
    for behaviour in (UP, REFUSES, SILENT, BROKEN, SLOW):
        with tempfile.TemporaryDirectory() as folder, FailingServer(Path(folder) / "artifacts") as server:
            server.behave(behaviour)
            told = Path(folder) / "run"
            log = EventLog(told / "events.jsonl")
            mlflow = MlflowTracker(
                server.uri, "cases", run_dir=told, artifact_location=None, run_id=None, run_name="run", tags={}
            )
            trackers = Trackers([log, mlflow])
            trackers.start({})
            began = time.perf_counter()
            for number in range(1, OUTAGE_STEPS + 1):
                time.sleep(STEP_SECONDS)
                trackers.tell(step(number))
            seconds = time.perf_counter() - began
            ending = time.perf_counter()
            trackers.end("finished")
            print(
                f"| {behaviour} | {trackers._tracker_seconds / seconds:.2%} | {trackers._longest:.3f} "
                f"| {time.perf_counter() - ending:.1f} |",
                flush=True,
            )


def volume(steps: int, points: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage, run_dir = Path(folder), Path(folder) / "run"
        params = {"total_steps": steps} | ({"points_a_metric": points} if points else {})
        noted = seconds_of(lambda: write_log(run_dir / "events.jsonl", params, steps))
        size = (run_dir / "events.jsonl").stat().st_size
        print(f"event log: {steps:,} steps, {size / 2**20:.0f} MiB, {noted / steps * 1e6:.0f} microseconds a step")
        table = run_dir / "steps.parquet"
        made = seconds_of(lambda: write_step_table(run_dir / "events.jsonl", table))
        print(f"steps.parquet: {made:.1f} s, {table.stat().st_size / 2**20:.1f} MiB")
        uri = tracking_uri(storage)
        template = RunTemplate(
            tracking_uri=uri,
            experiment="volume",
            artifact_location=artifact_location(storage),
            run_name="long",
            tags={},
            started_ms=1,
        )
        before, cpu = time.perf_counter(), time.process_time()
        sent = replay(
            run_dir, template, run_id=None, end=End(status="finished", unix_milliseconds=time.time_ns() // 1_000_000)
        )
        took, worked = time.perf_counter() - before, time.process_time() - cpu
        database = (storage / "mlflow" / "mlflow.db").stat().st_size
        print(
            f"sent and checked: {sent.sent.num_points:,} points in {took:.0f} s ({worked:.0f} s of CPU), "
            f"database {database / 2**20:.0f} MiB"
        )
        with served(storage) as (address, server):
            page(address, server, sent.mlflow_run_id)


def write_log(path: Path, params: dict[str, int], steps: int) -> None:
    random = np.random.default_rng(0)
    noise = random.normal(1.0, 0.05, (steps, RANKS))
    log = EventLog(path)
    log.start(params)
    for number in range(1, steps + 1):
        log.tell(_record(number, steps, noise[number - 1]))
    log.end("finished")


def _record(number: int, steps: int, noise: np.ndarray) -> StepRecord:
    busy = tuple(float(value) for value in 0.4 * noise)
    return replace(
        step(number, loss=float(4 / math.sqrt(number) * noise[0])),
        step=number % (steps // 6),
        seconds=float(0.5 * noise.mean()),
        gradient_norm=float(noise[1]),
        rank_busy_seconds=busy,
        rank_real_tokens=(110,) * RANKS,
        peak_share=0.4,
        run_fraction=number / steps,
        run_cost_fraction=number / steps,
    )


@contextmanager
def served(storage: Path) -> Iterator[tuple[str, int]]:
    """Its address, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", tracking_uri(storage), "--default-artifact-root", artifact_location(storage)]
    process = subprocess.Popen([sys.executable, *command, *store], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                requests.get(f"{address}/health", timeout=5)
                break
            except requests.RequestException:
                time.sleep(0.5)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)


def page(address: str, server: int, run_id: str) -> None:
    """The calls that MLflow's page makes for a run, one after another, each three times; the median.

    With the server's CPU seconds beside: other programs disturb them less.
    """
    api, ajax = f"{address}/api/2.0/mlflow", f"{address}/ajax-api/2.0/mlflow"
    experiment = requests.get(f"{api}/experiments/get-by-name", {"experiment_name": "volume"}, timeout=60)
    experiment_id = experiment.json()["experiment"]["experiment_id"]
    run = requests.get(f"{api}/runs/get", {"run_id": run_id}, timeout=60).json()["run"]
    keys = sorted(metric["key"] for metric in run["data"]["metrics"])
    search = {"experiment_ids": [experiment_id], "max_results": 100}

    def table() -> None:
        requests.post(f"{ajax}/runs/search", json=search, timeout=600).raise_for_status()

    def values() -> None:
        requests.get(f"{ajax}/runs/get", {"run_id": run_id}, timeout=600).raise_for_status()

    taken: list[float] = []

    def charts() -> None:
        for key in keys:
            asked = {"run_ids": run_id, "metric_key": key, "max_results": 320}
            began = time.perf_counter()
            answer = requests.get(f"{ajax}/metrics/get-history-bulk-interval", asked, timeout=600)
            answer.raise_for_status()
            taken.append(time.perf_counter() - began)

    print(f"page: table of runs {median(table, server)}, run with latest values {median(values, server)}")
    print(f"page: histories of {len(keys)} charts {median(charts, server)}, the slowest chart {max(taken):.3f} s")


def median(work: Callable[[], None], server: int) -> str:
    walls, workers = [], []
    for _ in range(3):
        before = cpu_of(server)
        walls.append(seconds_of(work))
        workers.append(cpu_of(server) - before)
    return f"{statistics.median(walls):.2f} s ({statistics.median(workers):.2f} s of the server's CPU)"


def cpu_of(server: int) -> float:
    process = psutil.Process(server)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
