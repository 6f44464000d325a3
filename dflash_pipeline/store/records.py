"""Frozen records to JSON files and back, validated by their own types. No pickle."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store.files import write_atomic

Record = TypeVar("Record")


def save_record(path: Path, record: object) -> None:
    """Write a frozen dataclass as JSON, whole or not at all."""
    write_atomic(path, TypeAdapter(type(record)).dump_json(record, indent=1) + b"\n")


def load_record(path: Path, kind: type[Record]) -> Record:
    """Read a record back; a file that does not describe a valid `kind` is refused by name."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise Refused(
            f"no {kind.__name__} here",
            where=str(path),
            fix="run the stage that makes it, for example with `dflash run`",
        ) from None
    except (ValidationError, OSError) as error:
        raise Refused(
            f"not a valid {kind.__name__}: {_fault(error)}",
            where=str(path),
            fix="move the file away and run its stage again",
        ) from None


def _fault(error: ValidationError | OSError) -> str:
    if isinstance(error, OSError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    others = error.error_count() - 1
    return f"{place}{': ' if place else ''}{first['msg']}{f', and {others} more faults' if others else ''}"
