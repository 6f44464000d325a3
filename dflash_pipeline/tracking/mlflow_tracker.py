"""The tracker that fills MLflow, and never holds up a step.

Calls only append to a queue; one thread sends. A server that is down costs nothing but points that come late: the
event log on disk holds them all, and `tracking.spool` sends what a run lacks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from dflash_pipeline.contracts.events import Record
from dflash_pipeline.tracking.mlflow_runs import SERVER_FAULTS, RunTemplate, without_password
from dflash_pipeline.tracking.sender import RECORDS_A_CALL, RunSender, TimedRecord
from dflash_pipeline.training.tracker import EndStatus, Params

QUEUE_RECORDS = 20_000
"""Some 10 MB. What comes when the queue is full is left to the event log."""

IDLE_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0

logger = logging.getLogger(__name__)


class MlflowTracker:
    """Sends a run's records to MLflow from a thread of its own.

    A given `run_id` is taken up again: RUNNING, more points, the same parameters. If it is gone, or none, a new run is
    made. `end` waits at most `end_wait_seconds` for what is not sent yet, then gives up with one warning.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str,
        *,
        artifact_location: str,
        run_id: str | None,
        run_name: str,
        tags: Mapping[str, str],
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
        self._address = without_password(tracking_uri)
        self._sender = RunSender(template, run_id)
        self._end_wait_seconds = end_wait_seconds
        self._queue: deque[TimedRecord] = deque()
        self._left_out = 0
        self._num_faults = 0
        self._last_fault = "no answer in time"
        self._thread: threading.Thread | None = None
        self._status: EndStatus = "failed"
        self._opened = threading.Event()
        self._ending = threading.Event()
        self._given_up = threading.Event()
        self._closed = threading.Event()

    def run_id(self, *, wait_seconds: float) -> str | None:
        """The run that points go to, waited for at most so long; None while no server has answered."""
        return self._sender.run_id if self._opened.wait(wait_seconds) else None

    def start(self, params: Params) -> None:
        as_text = {name: str(value) for name, value in params.items()}
        self._thread = threading.Thread(target=self._work, args=(as_text,), name="mlflow", daemon=True)
        self._thread.start()

    def tell(self, record: Record) -> None:
        if len(self._queue) >= QUEUE_RECORDS:
            self._left_out += 1
            return
        self._queue.append(TimedRecord(record=record, unix_milliseconds=time.time_ns() // 1_000_000))

    def sync(self) -> None:
        """Nothing to do: the event log is what survives."""

    def end(self, status: EndStatus) -> None:
        if self._thread is None:
            return
        self._status = status
        self._ending.set()
        self._thread.join(self._end_wait_seconds)
        self._given_up.set()
        if not self._closed.is_set() or self._left_out or self._sender.refusals:
            logger.warning(
                "MLflow at %s did not take everything: %d records unsent, %d left out, %d calls refused, %d failed "
                "(%s). Training is not affected and events.jsonl holds it all: `dflash sync RUN` sends what is missing",
                self._address,
                len(self._queue),
                self._left_out,
                self._sender.refusals,
                self._num_faults,
                self._last_fault,
            )

    # What follows runs in the sending thread.

    def _work(self, params: dict[str, str]) -> None:
        if not self._insist(self._sender.open):
            return
        self._opened.set()
        if not self._insist(lambda: self._sender.send_params(params)):
            return
        while self._queue or not self._ending.is_set():
            if not self._queue:
                self._ending.wait(IDLE_SECONDS)
            elif not self._insist(self._send_some):
                return
        if self._insist(lambda: self._sender.close(self._status)):
            self._closed.set()

    def _send_some(self) -> None:
        # By index: the other thread may append meanwhile, which no iterator bears. Taken off only once they are sent.
        items = [self._queue[index] for index in range(min(len(self._queue), RECORDS_A_CALL))]
        self._sender.send(items)
        for _ in items:
            self._queue.popleft()

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
