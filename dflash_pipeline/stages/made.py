"""What a stage returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class Made(Generic[Record]):
    """The record of what exists now, and whether it was there already."""

    record: Record
    reused: bool
