"""Small programs that behave like torchrun and its ranks, in all the ways that matter for starting and stopping.

    stand_in.py launch FOLDER KIND GRACE   calls run_group on a boss, as the pipeline does on torchrun
    stand_in.py boss FOLDER KIND           starts two workers in sessions of their own and waits for them
    stand_in.py worker FOLDER KIND         waits for a minute

A worker that is `polite` ends at SIGTERM, a `deaf` one ignores it but watches the lifeline, a `lone` one does neither.
Each process leaves a file `ROLE-PID` in the folder, and the boss one called `asked-to-stop` when SIGTERM reaches it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dflash_pipeline.launch.group import run_group
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, watch_lifeline


def launch(folder: Path, kind: str, grace: str) -> None:
    command = [sys.executable, __file__, "boss", str(folder), kind]
    sys.exit(run_group(command, environment=os.environ, stop_grace_seconds=float(grace)))


def boss(folder: Path, kind: str) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: (folder / "asked-to-stop").touch())
    command = [sys.executable, __file__, "worker", str(folder), kind]
    workers = [subprocess.Popen(command, start_new_session=True) for _ in range(2)]
    (folder / f"boss-{os.getpid()}").touch()
    while any(worker.poll() is None for worker in workers):
        if (folder / "asked-to-stop").exists():
            for worker in workers:
                worker.terminate()
        time.sleep(0.1)


def worker(folder: Path, kind: str) -> None:
    if kind != "polite":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"worker-{os.getpid()}").touch()
    if kind != "lone":
        watch_lifeline(Path(os.environ[LIFELINE_VARIABLE]), grace_seconds=1.0)
    time.sleep(60)


if __name__ == "__main__":
    role, where, *rest = sys.argv[1:]
    {"launch": launch, "boss": boss, "worker": worker}[role](Path(where), *rest)
