"""The tracker that fills MLflow, and never holds up a step.

It is told nothing that it keeps: a thread reads the run's event log, which the tracker before it writes, and sends
from there (`tracking.spool`). A server that is down costs nothing but points that come late.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dflash_pipeline.contracts.events import Record
from dflash_pipeline.tracking.mlflow_runs import SERVER_FAULTS, RunTemplate, without_password
from dflash_pipeline.tracking.sender import RunSender
from dflash_pipeline.tracking.spool import Spool
from dflash_pipeline.training.tracker import EndStatus, Params

IDLE_SECONDS = 1.0
KILLED_WAIT_SECONDS = 8.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0

logger = logging.getLogger(__name__)


class MlflowTracker:
    """Sends a run's event log to MLflow from a thread of its own.

    `run_id`, if given, is taken up again: RUNNING, more points, the same parameters. If it is gone, or none, a new run
    is made and sent the whole log. `end` waits at most `end_wait_seconds` for what is not sent yet, then gives up with
    one warning. `files` that exist by then are put beside the points.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str,
        *,
        run_dir: Path,
        artifact_location: str | None,
        run_id: str | None,
        run_name: str,
        tags: Mapping[str, str],
        files: tuple[Path, ...] = (),
        end_wait_seconds: float = 10.0,
    ) -> None:
        template = RunTemplate(
            tracking_uri=tracking_uri,
            experiment=experiment,
            artifact_location=artifact_location,
            run_name=run_name,
            tags=dict(tags),
            started_ms=int(time.time() * 1000),
        )
        self._run = run_dir.name
        self._address = without_password(tracking_uri)
        self._sender = RunSender(template)
        self._spool = Spool(run_dir, self._sender, run_id=run_id)
        self._files = files
        self._end_wait_seconds = end_wait_seconds
        self._num_faults = 0
        self._last_fault = "no answer in time"
        self._thread: threading.Thread | None = None
        self._status: EndStatus = "failed"
        self._ended_ms = 0
        self._opened = threading.Event()
        self._ending = threading.Event()
        self._given_up = threading.Event()
        self._closed = threading.Event()

    def run_id(self, *, wait_seconds: float) -> str | None:
        """The run that points go to, waited for at most so long; None while no server has answered."""
        return self._spool.run_id if self._opened.wait(wait_seconds) else None

    def start(self, params: Params) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def tell(self, record: Record) -> None:
        """Nothing to do: it is in the event log."""

    def sync(self) -> None:
        """Nothing to do: the event log is what survives."""

    def end(self, status: EndStatus) -> None:
        if self._thread is None:
            return
        self._status, self._ended_ms = status, time.time_ns() // 1_000_000
        self._ending.set()
        # Whoever asks a run to stop waits less long than one who has waited for its end.
        wait = min(self._end_wait_seconds, KILLED_WAIT_SECONDS) if status == "killed" else self._end_wait_seconds
        self._thread.join(wait)
        self._given_up.set()
        if not self._closed.is_set() or self._sender.refusals:
            logger.warning(
                "MLflow at %s did not take everything: %d bytes of the event log unsent, %d calls refused, %d failed "
                "(%s). Training is not affected and events.jsonl holds it all: `dflash sync %s` sends what is missing",
                self._address,
                self._spool.bytes_left,
                self._sender.refusals,
                self._num_faults,
                self._last_fault,
                self._run,
            )

    # What follows runs in the sending thread.

    def _work(self) -> None:
        if not self._insist(self._spool.open):
            return
        if not self._insist(self._sender.take_up):
            return
        self._opened.set()
        while self._insist(self._send_some):
            if self._is_over:
                break
        else:
            return
        self._send_files()
        if self._insist(lambda: self._sender.close(self._status, at_ms=self._ended_ms)):
            self._closed.set()

    @property
    def _is_over(self) -> bool:
        # In this order: what was written before the end was asked for must be seen.
        return self._ending.is_set() and self._spool.bytes_left == 0

    def _send_some(self) -> None:
        if self._spool.send_some() is None:
            self._ending.wait(IDLE_SECONDS)

    def _send_files(self) -> None:
        """Once: points count for more, and the files stay where they are."""
        for path in self._files:
            if path.exists() and not self._given_up.is_set():
                try:
                    self._sender.send_file(path)
                except SERVER_FAULTS as fault:
                    logger.warning("MLflow did not take %s: %s", path.name, without_password(fault))

    def _insist(self, act: Callable[[], None]) -> bool:
        """Acts until it works. False once `end` has given up."""
        pause = FIRST_PAUSE_SECONDS
        while not self._given_up.is_set():
            try:
                act()
                return True
            except SERVER_FAULTS as fault:
                self._num_faults += 1
                self._last_fault = f"{type(fault).__name__}: {without_password(fault)}"
            if self._ending.wait(pause):
                # Time is short now: no long pauses any more, but no busy loop either.
                self._given_up.wait(FIRST_PAUSE_SECONDS)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return False
