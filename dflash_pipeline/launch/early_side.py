"""Keeps a measuring process beside the ranks: started before them, gone with them, and no harm to them if it fails."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, Lifeline
from dflash_pipeline.training.early import EarlyWork
from dflash_pipeline.training.early_mailbox import Mailbox

MODULE = "dflash_pipeline.launch.early_acceptance"
END_SECONDS = 2.0
"""From SIGTERM to SIGKILL: it has nothing to save."""

logger = logging.getLogger(__name__)


@contextmanager
def measured_beside(run_dir: Path, work: EarlyWork | None, *, environment: Mapping[str, str]) -> Iterator[None]:
    """While the body runs, acceptance is measured beside it; with no work, nothing is.

    However the body ends, the process and its folder are gone afterwards; and when this process is killed, the other
    ends by its lifeline. If that one ends before its time, one warning says so, and the training goes on without.
    """
    mailbox = Mailbox(run_dir)
    mailbox.clear()
    if work is None:
        yield
        return
    mailbox.open(work)
    # In a temporary folder and not with the run: copying a folder with a pipe in it would hang.
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder, Lifeline(Path(folder)) as lifeline:
        process = _start(run_dir, work, {**environment, LIFELINE_VARIABLE: str(lifeline.path)}, log=mailbox.log)
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(process, mailbox, over), name="early-watch", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            _end(process)
            watch.join()
            mailbox.clear()


def _start(run_dir: Path, work: EarlyWork, environment: Mapping[str, str], *, log: Path) -> subprocess.Popen[bytes]:
    limits = {name: str(work.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    if work.device == "cpu":
        limits["CUDA_VISIBLE_DEVICES"] = ""
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", MODULE, str(run_dir)],
            env={**environment, **limits, "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            # A session of its own: an interrupt at the terminal is the launcher's to deal with.
            start_new_session=True,
        )


def _watch(process: subprocess.Popen[bytes], mailbox: Mailbox, over: threading.Event) -> None:
    code = process.wait()
    if over.is_set():
        return
    mailbox.give_up()
    logger.warning(
        "acceptance is measured no more, the training goes on: its process ended with %s%s",
        f"exit code {code}" if code >= 0 else f"signal {-code}",
        _last_line(mailbox.log),
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f": {said[-1]}" if said else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.terminate()
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
