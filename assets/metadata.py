"""Values for the page. Never NaN or infinity: one of them blanks it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import dagster as dg


def count(value: int) -> dg.MetadataValue:
    return dg.MetadataValue.int(int(value))


def share(value: float) -> dg.MetadataValue:
    """A fraction in 0 … 1."""
    return number(value)


def number(value: float) -> dg.MetadataValue:
    """A float to six digits, or the word for one that no page can plot."""
    return dg.MetadataValue.float(float(f"{value:.6g}")) if math.isfinite(value) else dg.MetadataValue.text(str(value))


def table(columns: Sequence[str], rows: Sequence[Sequence[str | int | float | bool]]) -> dg.MetadataValue:
    """A table that the page draws; a cell that is not finite is written as text."""
    records = [dg.TableRecord(dict(zip(columns, (_cell(value) for value in row), strict=True))) for row in rows]
    schema = dg.TableSchema(columns=[dg.TableColumn(name=name) for name in columns])
    return dg.MetadataValue.table(records=records, schema=schema)


def _cell(value: str | int | float | bool) -> str | int | float | bool:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
