"""The full record of a run's steps as one Parquet file: every field of every step, whatever charts leave out."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import Record, StepRecord
from dflash_pipeline.store.files import write_atomic
from dflash_pipeline.training.event_json import as_record
from dflash_pipeline.training.event_log import each_event
from dflash_pipeline.training.tracker import EndStatus, Params

STEP_TABLE = "steps.parquet"

_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    tuple[float, ...]: pa.list_(pa.float64()),
    tuple[int, ...]: pa.list_(pa.int64()),
}
_CODES = {int: "q", float: "d", bool: "b"}
"""Numbers are kept as numbers: a long run has some millions."""

logger = logging.getLogger(__name__)


def write_step_table(events: Path, table: Path) -> int:
    """One row a step, in order, of the last attempt that did it; `attempt` says which. Returns the number of rows.

    Written whole or not at all. Values that are not finite are NaN. A log without a step makes no file.
    """
    hints = get_type_hints(StepRecord)
    columns: dict[str, Any] = {name: array(_CODES[hint]) if hint in _CODES else [] for name, hint in hints.items()}
    steps = columns["global_step"]
    for event in each_event(events):
        record = _step(event)
        if record is None:
            continue
        kept = len(steps)
        while kept and steps[kept - 1] >= record.global_step:
            kept -= 1
        for name, values in columns.items():
            del values[kept:]
            values.append(getattr(record, name))
    if not steps:
        return 0
    arrays = {name: pa.array(columns[name], type=_TYPES[hint]) for name, hint in hints.items() if hint is not bool}
    arrays |= {name: pa.array(map(bool, columns[name])) for name, hint in hints.items() if hint is bool}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: arrays[name] for name in hints}), sink, compression="zstd")
    write_atomic(table, sink.getvalue().to_pybytes())
    return len(steps)


class StepTable:
    """A tracker that writes the table when an attempt ends. Goes after the event log, which it reads.

    Not of one that was asked to stop: it has little time, and the next attempt writes it, or `dflash sync`.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / STEP_TABLE
        self._events = run_dir / "events.jsonl"

    def start(self, params: Params) -> None:
        pass

    def tell(self, record: Record) -> None:
        pass

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        if status == "killed":
            return
        try:
            write_step_table(self._events, self.path)
        except (OSError, Refused) as fault:
            # The log holds it all, and `dflash sync` makes it again: no reason to call the attempt failed.
            logger.warning("no %s of this attempt: %s", STEP_TABLE, fault)


def _step(event: Mapping[str, Any]) -> StepRecord | None:
    record = as_record(event) if event["kind"] == "step" else None
    return record if isinstance(record, StepRecord) else None
