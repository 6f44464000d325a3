"""The event log as a spool: read from where sending stopped, sent in batches, and marked as far as it has arrived.

Nothing waits in memory, whatever the length of an outage, and nothing is lost with a process: what is not sent is
still in the log, and the next attempt or `dflash sync` goes on at the mark. A mark may lag behind, since it is written
after the answer: then a batch is sent again, with the same times, and is the same points.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlflow.entities import Metric

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.run import SpoolMark
from dflash_pipeline.faults import fault_point
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.tracking.charting import Charting, TimedPoint
from dflash_pipeline.tracking.sender import METRICS_A_CALL, RunSender

MARK = "sent.json"
_READ_BYTES = 2**20
logger = logging.getLogger(__name__)
_POINTS_A_LINE = 64
"""More than any line makes, so that a batch ends before the limit of a call."""


@dataclass(kw_only=True, slots=True)
class _Batch:
    """What goes out together, and where the log stands after it."""

    points: list[TimedPoint] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    starts: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    until: int = 0
    num_lines: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.points) > METRICS_A_CALL - _POINTS_A_LINE


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What one call sent."""

    num_points: int = 0
    num_params: int = 0


class Spool:
    """One run's log on its way to one MLflow run. Knows no threads: each call does its act or raises, and may be
    repeated after it raised."""

    def __init__(self, run_dir: Path, sender: RunSender, *, run_id: str | None) -> None:
        """`run_id` is what the run's record says. The log must exist."""
        self.events = run_dir / "events.jsonl"
        self._path = run_dir / MARK
        self._sender = sender
        self._charting = Charting()
        self._batch = _Batch()
        self._read_until = 0
        self._mark = self._first_mark(run_id)

    @property
    def run_id(self) -> str | None:
        """Known once `open` has returned."""
        return self._mark.mlflow_run_id

    @property
    def bytes_left(self) -> int:
        return max(0, self.events.stat().st_size - self._mark.offset)

    def open(self) -> None:
        """Find or make the run; a new one is sent everything, from the first line on."""
        run_id = self._sender.open(self._mark.mlflow_run_id, spool=self._mark.spool)
        if run_id != self._mark.mlflow_run_id:
            self._keep(replace(self._mark, mlflow_run_id=run_id, offset=0))
        self._charting, self._read_until = Charting(), 0
        for event, until in lines_from(self.events, 0, stop=self._mark.offset):
            self._charting.read(event)
            self._read_until = until

    def send_some(self) -> Sent | None:
        """The next batch, at most one call of points; None when there is nothing to send."""
        if not self._batch.until:
            self._fill()
        if not self._batch.until:
            return None
        sent = self._send(self._batch)
        self._keep(replace(self._mark, offset=self._batch.until))
        self._batch = _Batch()
        return sent

    def finish(self) -> Sent:
        """What waits for more steps that will not come."""
        points = self._charting.finish().points
        return self._send(_Batch(points=list(points)))

    def _first_mark(self, run_id: str | None) -> SpoolMark:
        offset = 0
        try:
            if self._path.exists():
                return load_record(self._path, SpoolMark)
            # A run that has points already but no mark is of before there were marks: what is in the log is sent.
            offset = self.events.stat().st_size if run_id is not None else 0
        except Refused as damage:
            logger.warning("%s: the whole event log is sent again, which changes no point", damage)
        mark = SpoolMark(spool=uuid.uuid4().hex, mlflow_run_id=run_id, offset=offset)
        save_record(self._path, mark)
        return mark

    def _fill(self) -> None:
        for event, until in lines_from(self.events, self._read_until):
            told = self._charting.read(event)
            self._batch.points += told.points
            self._batch.tags |= told.tags or {}
            if told.params is not None:
                self._batch.starts.append((told.attempt, dict(told.params)))
            self._batch.until = self._read_until = until
            self._batch.num_lines += 1
            if self._batch.is_full:
                return

    def _send(self, batch: _Batch) -> Sent:
        num_params = sum(self._sender.send_params(params, attempt=attempt) for attempt, params in batch.starts)
        metrics = [Metric(p.point.key, p.point.value, p.unix_milliseconds, p.point.step) for p in batch.points]
        if metrics or batch.tags:
            self._sender.send(metrics, batch.tags)
        return Sent(num_points=len(metrics), num_params=num_params)

    def _keep(self, mark: SpoolMark) -> None:
        fault_point("spool.before-mark")
        save_record(self._path, mark)
        self._mark = mark


def lines_from(path: Path, offset: int, *, stop: int | None = None) -> Iterator[tuple[dict[str, Any], int]]:
    """Whole lines from a byte on, with where each ends; those that begin before `stop`, if given.

    A line without its end is not there yet.
    """
    with path.open("rb") as file:
        file.seek(offset)
        rest = b""
        while stop is None or offset < stop:
            block = file.read(_READ_BYTES)
            if not block:
                return
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                if stop is not None and offset >= stop:
                    return
                offset += len(line) + 1
                yield json.loads(line), offset
