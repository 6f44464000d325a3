"""A server that starts a run as Dagster's does: with multiprocessing, and from a thread.

python -m tests.launch.code_server FOLDER
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from pathlib import Path

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.launch.group import run_group


def run(folder: Path) -> None:
    """Leaves `run-PID` as soon as it is there, `work-PID` by what it starts, and `said` when it ends with an error."""
    (folder / f"run-{os.getpid()}").touch()
    work = f"import os, pathlib, time; pathlib.Path({str(folder)!r}, f'work-{{os.getpid()}}').touch(); time.sleep(60)"
    try:
        run_group([sys.executable, "-c", work], environment=os.environ, stop_grace_seconds=5.0)
    except Failed as error:
        (folder / "said").write_text(str(error))


def serve(folder: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=run, args=(folder,))
    process.start()
    process.join()


if __name__ == "__main__":
    thread = threading.Thread(target=serve, args=(Path(sys.argv[1]),))
    thread.start()
    thread.join()
