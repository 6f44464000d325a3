"""Values for the page, by one convention: a number's key ends in its unit, or is one of the plain counts.

Never NaN or infinity: one of them blanks the page. Never another type under the same key: its plot would break off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import dagster as dg

UNITS = frozenset(
    {"tokens", "seconds", "second", "hours", "bytes", "share", "fraction", "efficiency", "ratio", "loss", "round"}
    | {"temperature"}
)
"""What the last word of a number's key may be. Share, fraction and efficiency lie in 0 … 1, a loss is in nats, and
`…_per_second` and `…_per_round` end in what they are counted by."""

COUNTS = frozenset(
    {"accepted_rows", "rejected_rows", "exact_duplicates", "prompts_to_answer", "training_conversations"}
    | {"validation_conversations", "answers", "cut_at_limit", "empty", "conversations", "training_samples"}
    | {"validation_samples", "samples", "buckets", "steps", "micro_batches", "fillers", "dropped_samples", "epochs"}
    | {"total_steps", "left_out_samples", "fitted_to_steps", "planned_steps", "ranks", "loss_spikes", "epochs_done"}
    | {"tensors", "prompts", "whole_rounds", "cut_rounds", "differing_settings", "loss_events", "alarms", "faults"}
)
"""Whole numbers of what their names say."""

NOT_FINITE = "not_finite"
"""Key of the text that names the numbers of a page which are none."""


def count(value: int) -> dg.MetadataValue:
    return dg.MetadataValue.int(int(value))


def share(value: float) -> dg.MetadataValue:
    """A fraction in 0 … 1; finite, as what it is a part of is not empty."""
    return _rounded(value)


def numbers(values: Mapping[str, float | None]) -> dict[str, dg.MetadataValue]:
    """Floats to six digits by name. None is left out; what is not finite is told of in words, under `NOT_FINITE`."""
    known = {name: value for name, value in values.items() if value is not None}
    odd = {name: value for name, value in known.items() if not math.isfinite(value)}
    told = {NOT_FINITE: dg.MetadataValue.text(", ".join(f"{name} is {value}" for name, value in odd.items()))}
    return {name: _rounded(known[name]) for name in known if name not in odd} | (told if odd else {})


def table(columns: Sequence[str], rows: Sequence[Sequence[str | int | float | bool]]) -> dg.MetadataValue:
    """A table that the page draws; a cell that is not finite is written as text."""
    records = [dg.TableRecord(dict(zip(columns, (_cell(value) for value in row), strict=True))) for row in rows]
    schema = dg.TableSchema(columns=[dg.TableColumn(name=name) for name in columns])
    return dg.MetadataValue.table(records=records, schema=schema)


def _rounded(value: float) -> dg.MetadataValue:
    return dg.MetadataValue.float(float(f"{value:.6g}"))


def _cell(value: str | int | float | bool) -> str | int | float | bool:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
