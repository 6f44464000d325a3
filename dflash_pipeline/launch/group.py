"""Runs one command that starts processes of its own, and comes back only when none of them is left.

Three ties, since each covers what the others cannot: the tether (this process dies: the command gets SIGTERM), the
lifeline (the command dies: what it started stops itself), and the launch's mark in the environment (what ignores both
is found and killed). A fourth is for a run that a code server has started: when the server dies, this process stops.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, Lifeline

STANDARD_ERROR = 2
LOOK_SECONDS = 0.1
SERVER_LOOK_SECONDS = 0.5
KILL_SECONDS = 10.0
"""Longest wait for killed processes to be gone: only one stuck in the kernel takes longer."""

logger = logging.getLogger(__name__)


def run_group(command: Sequence[str], *, environment: Mapping[str, str], stop_grace_seconds: float) -> int:
    """Runs `command` in a session of its own and returns its exit code (negative: the signal that ended it).

    Its standard output goes to this process's standard error. Any exception here, such as an interrupt, stops the
    group: SIGTERM, then after the grace SIGKILL; a second one kills at once. However this returns, no process is left.
    Failed when this process was started by another one's multiprocessing, which has ended.
    """
    # In a temporary folder and not with the run: copying a folder with a pipe in it would hang.
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder, Lifeline(Path(folder)) as lifeline:
        process = subprocess.Popen(
            _tethered(command),
            env={**environment, LIFELINE_VARIABLE: str(lifeline.path)},
            stdin=subprocess.DEVNULL,
            stdout=STANDARD_ERROR,
            start_new_session=True,
        )
        try:
            return _wait(process)
        finally:
            _leave_none(process, lifeline, grace_seconds=stop_grace_seconds)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Failed when this process is a server's child and the server is gone: nobody else could stop it."""
    server = multiprocessing.parent_process()
    if server is None:
        return process.wait()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(SERVER_LOOK_SECONDS)
        if not server.is_alive():
            raise Failed(
                f"the server that started this run has ended (process {server.pid}), and the run with it",
                where="launch",
                fix="start the server again, then the same run: it continues at its newest checkpoint",
            )


def _tethered(command: Sequence[str]) -> list[str]:
    if threading.current_thread() is not threading.main_thread():
        # The kernel would take the end of this thread for the death of the process, and stop the work.
        logger.warning("started outside the main thread: without a tether, only the lifeline ends ranks left behind")
        return list(command)
    return [sys.executable, "-m", "dflash_pipeline.launch.tether", str(os.getpid()), "--", *command]


def _leave_none(process: subprocess.Popen[bytes], lifeline: Lifeline, *, grace_seconds: float) -> None:
    mark = f"{LIFELINE_VARIABLE}={lifeline.path}".encode()
    deadline = time.monotonic() + grace_seconds
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_seconds)
        lifeline.close()
        _wait_for_none(mark, deadline)
    finally:
        lifeline.close()
        _kill(mark)
        process.wait()


def _kill(mark: bytes) -> None:
    deadline = time.monotonic() + KILL_SECONDS
    while left := _marked(mark):
        if time.monotonic() > deadline:
            raise Failed(
                f"processes {left} do not end, even killed",
                where="launch",
                fix="they are stuck in a driver or a file system; a reboot of the machine ends them",
            )
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def _wait_for_none(mark: bytes, deadline: float) -> None:
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _marked(mark: bytes) -> list[int]:
    """Processes that were started with this launch's mark. One that has ended and waits to be reaped has none."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        # Other people's processes cannot be read, and any may end meanwhile.
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found
