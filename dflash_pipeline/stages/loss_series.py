"""Any series of losses from a file: columns or a list in JSON, JSON lines, or CSV. Faults are named by their row."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.errors import Refused, refusing

MOST_BYTES = 2**28
COLUMNS = ("loss", "step", "bucket", "epoch", "sample_ids")
_FORMS = 'give {"loss": […]}, a JSON list, or JSON lines or CSV with a column loss'


@dataclass(frozen=True, kw_only=True, slots=True)
class LossStep:
    """One step of a series."""

    step: int
    """Rises from one to the next."""
    loss: float
    bucket: int
    epoch: int
    sample_ids: tuple[int, ...]


def read_losses(path: Path) -> list[LossStep]:
    """The series in a file. Text, null and empty cells that are no number but NaN or infinity are read as those.

    Steps count from 0 where the file has none; bucket and epoch are 0. Refused: a file in another form, columns of
    different sizes, a value of a wrong kind, steps that do not rise.
    """
    rows = [_step(row, number, where=f"{path} row {number}") for number, row in enumerate(_rows(path))]
    if not rows:
        raise Refused("there is no loss in it", where=str(path), fix=_FORMS)
    for before, after in pairwise(rows):
        if after.step <= before.step:
            raise Refused(
                f"step {after.step} comes after step {before.step}",
                where=str(path),
                fix="give every step once, in rising order, on every row or on none",
            )
    return rows


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise Refused(f"more than {MOST_BYTES:,} bytes", where=str(path), fix="give fewer steps at a time")
    with refusing("neither JSON nor CSV", where=str(path), fix=_FORMS):
        text = content.decode("utf-8-sig")
        rows = _parsed(text.lstrip()) if text.lstrip()[:1] in ("{", "[") else list(csv.DictReader(io.StringIO(text)))
    if isinstance(rows, dict):
        rows = _of_columns(rows, path)
    for number, row in enumerate(rows):
        named = row if isinstance(row, dict) else {"loss": row}
        if None in named:  # Where a CSV reader puts what is beyond the head.
            raise Refused("more cells than the head has", where=f"{path} row {number}", fix=_FORMS)
        if "loss" not in named:
            raise Refused("no loss", where=f"{path} row {number}", fix=_FORMS)
        yield named


def _parsed(text: str) -> Any:
    """A dictionary of columns, or a list of rows."""
    first, more = json.JSONDecoder().raw_decode(text)
    rest = text[more:].strip()
    if not rest and (isinstance(first, list) or isinstance(first.get("loss"), list)):
        return first
    return [first, *(json.loads(line) for line in rest.splitlines() if line.strip())]


def _of_columns(columns: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    given = {name: columns[name] for name in COLUMNS if name in columns}
    for name, column in given.items():
        if not isinstance(column, list) or len(column) != len(given["loss"]):
            raise Refused(
                f"`{name}` is no list of {len(given['loss'])} values, as `loss` is",
                where=str(path),
                fix="give columns of one size",
            )
    return [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]


def _step(row: Mapping[str, Any], number: int, *, where: str) -> LossStep:
    return LossStep(
        step=_whole(row.get("step"), number, where=f"{where}, step"),
        loss=_loss(row["loss"], where=f"{where}, loss"),
        bucket=_whole(row.get("bucket"), 0, where=f"{where}, bucket"),
        epoch=_whole(row.get("epoch"), 0, where=f"{where}, epoch"),
        sample_ids=_sample_ids(row.get("sample_ids"), where=f"{where}, sample_ids"),
    )


def _loss(value: Any, *, where: str) -> float:
    if value is None or value == "":
        return math.nan
    if isinstance(value, str | float) or type(value) is int:
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise _wrong(value, where, "give a number, NaN, Infinity or null")


def _whole(value: Any, absent: int, *, where: str) -> int:
    """A whole number; `absent` when there is none."""
    if value is None or value == "":
        return absent
    if type(value) is int and abs(value) < 2**63:
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value.strip()):
        return int(value)
    raise _wrong(value, where, "give a whole number")


def _sample_ids(value: Any, *, where: str) -> tuple[int, ...]:
    """From a list, or from a cell with whole numbers apart."""
    if isinstance(value, str):
        value = [part for part in re.split(r"[\s,;\[\]]+", value) if part]
    if value is not None and not isinstance(value, Sequence):
        raise _wrong(value, where, "give a list of whole numbers")
    return tuple(_whole(item, 0, where=where) for item in value or ())


def _wrong(value: Any, where: str, fix: str) -> Refused:
    return Refused(f"{str(value)[:40]!r}", where=where, fix=fix)
