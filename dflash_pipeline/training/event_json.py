"""Records to JSON objects and back, without loss: as lines of the event log hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, get_type_hints

from dflash_pipeline.contracts.events import (
    AcceptanceRecord,
    AlarmRecord,
    AttemptRecord,
    BucketSeconds,
    EpochRecord,
    Record,
    SpikeRecord,
    StepRecord,
    VerdictRecord,
)

KINDS: dict[str, type[Record]] = {
    "step": StepRecord,
    "epoch": EpochRecord,
    "attempt": AttemptRecord,
    "spike": SpikeRecord,
    "alarm": AlarmRecord,
    "acceptance": AcceptanceRecord,
    "verdict": VerdictRecord,
}
_KIND_OF = {kind: name for name, kind in KINDS.items()}

# What lines lack that were written before there was such a field.
_EMPTY: dict[Any, Any] = {
    int: 0,
    float: math.nan,
    bool: False,
    str: "",
    tuple[float, ...]: (),
    tuple[int, ...]: (),
    tuple[BucketSeconds, ...]: (),
}
_BEFORE: dict[str, Any] = {"rule": "point", "severity": "warn"}


def as_event(record: Record) -> dict[str, Any]:
    """`kind` and the record's fields; `loss_hex` beside a loss, exact even where JSON has no word for it."""
    event = {"kind": _KIND_OF[type(record)]} | asdict(record)
    if isinstance(record, StepRecord | SpikeRecord):
        event["loss_hex"] = float(record.loss).hex()
    return event


def as_record(event: Mapping[str, Any]) -> Record | None:
    """The record of a line; None for a line that is of another kind. Null is NaN; a field of later days is empty."""
    kind = KINDS.get(event["kind"])
    if kind is None:
        return None
    values = {name: _value(event, name, hint) for name, hint in _hints(event["kind"]).items()}
    if "loss_hex" in event:
        values["loss"] = float.fromhex(event["loss_hex"])
    make: Callable[..., Record] = kind
    return make(**values)


@cache
def _hints(kind: str) -> dict[str, Any]:
    return get_type_hints(KINDS[kind])


def _value(event: Mapping[str, Any], name: str, hint: Any) -> Any:
    if name not in event:
        return _BEFORE.get(name, _EMPTY.get(hint))
    value = event[name]
    if value is None:
        return math.nan
    if hint == tuple[BucketSeconds, ...]:
        return tuple(BucketSeconds(**item) for item in value)
    return tuple(math.nan if item is None else item for item in value) if isinstance(value, list) else value
