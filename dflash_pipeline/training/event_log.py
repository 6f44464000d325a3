"""A run's events on disk, one JSON object a line: what trackers are filled from, and what outlives them."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import EpochRecord, Record, SpikeRecord, StepRecord
from dflash_pipeline.faults import fault_point, fault_write
from dflash_pipeline.store.files import fsync_folder
from dflash_pipeline.training.event_json import as_event, as_record
from dflash_pipeline.training.tracker import EndStatus, Params

_TAIL_BYTES = 65536


class EventLog:
    """A tracker that appends. Lines have `kind` and `unix_seconds`; steps and spikes `loss_hex`, exact even for NaN.

    A line is in the file (and survives a kill) when its call returns; after `epoch`, `end` and `sync` it also survives
    a loss of power. A torn last line of an earlier attempt is cut off at opening. Values that are not finite are null.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        _cut_torn_line(path)
        fsync_folder(path.parent)

    def start(self, params: Params) -> None:
        self._append({"kind": "start", "params": dict(params)})

    def tell(self, record: Record) -> None:
        self._append(as_event(record))
        if isinstance(record, EpochRecord):
            self.sync()

    def end(self, status: EndStatus) -> None:
        """Ends the attempt, and closes the file."""
        self._append({"kind": "end", "status": status})
        self.sync()
        self._file.close()

    def sync(self) -> None:
        """Makes every line so far durable: due before a checkpoint, which must never know more than this file."""
        os.fsync(self._file.fileno())

    def _append(self, event: dict[str, Any]) -> None:
        fault_point("events.before-append")
        fault_write()
        line = {"kind": event["kind"], "unix_seconds": time.time()} | event
        self._file.write(json.dumps(_finite(line), allow_nan=False).encode() + b"\n")
        self._file.flush()
        fault_point("events.after-append")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Every whole line, in order; none when the file is absent. A last line without its end was never written."""
    try:
        *lines, _torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [_event(line, where=f"{path} line {number}") for number, line in enumerate(lines, start=1)]


def each_event(path: Path) -> Iterator[dict[str, Any]]:
    """`read_events` of a log of any length: one line at a time."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield _event(line, where=f"{path} line {number}")


def last_attempt_losses(path: Path) -> list[tuple[int, str]]:
    """(global step, loss as hexadecimal float) of the last attempt that did each step, in order of steps."""
    losses = {event["global_step"]: event["loss_hex"] for event in read_events(path) if event["kind"] == "step"}
    return sorted(losses.items())


def last_attempt_spikes(path: Path) -> list[SpikeRecord]:
    """What the last attempt that did each step told of it, in order of steps."""
    return [record for record in last_attempt_records(path) if isinstance(record, SpikeRecord)]


def last_attempt_records(path: Path) -> list[Record]:
    """What holds of the run, in order of steps: whatever a later attempt did again, its own records stand for."""
    told: list[Record] = []
    newest = 0
    for event in read_events(path):
        record = as_record(event)
        if record is None:
            continue
        if isinstance(record, StepRecord):
            if record.global_step <= newest:
                # Told of this step and later ones, and superseded. Not all at the end: acceptance is told later.
                told = [earlier for earlier in told if earlier.global_step < record.global_step]
            newest = record.global_step
        told.append(record)
    return told


def last_step(path: Path) -> dict[str, Any] | None:
    """The last whole line about a step, looked for in the file's last lines only; None when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            *lines, _torn = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with suppress(ValueError):  # The first line of the tail may begin in the middle.
            event = json.loads(line)
            if isinstance(event, dict) and event.get("kind") == "step":
                return event
    return None


def _event(line: bytes, *, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Refused(f"not JSON: {error}", where=where, fix="take out the damaged line") from None
    if not isinstance(event, dict) or "kind" not in event:
        raise Refused("not an event", where=where, fix="take out the foreign line")
    return event


def _cut_torn_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
