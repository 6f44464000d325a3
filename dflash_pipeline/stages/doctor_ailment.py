"""A finding of the doctor's, with what mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from dflash_pipeline.contracts.findings import Finding, FindingKind

CLOCK_DRIFT_SECONDS = 60.0
"""A clock that was set meanwhile must not make a living process look like another one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ailment:
    """A finding and what mends it; None where only a person may."""

    finding: Finding
    mend: Callable[[], None] | None = None


def mendable(kind: FindingKind, what: str, *, where: str, fix: str, mend: Callable[[], None]) -> Ailment:
    return Ailment(finding=Finding(kind=kind, what=what, where=where, fix=fix, state="found"), mend=mend)


def only_told(kind: FindingKind, what: str, *, where: str, fix: str) -> Ailment:
    return Ailment(finding=Finding(kind=kind, what=what, where=where, fix=fix, state="for a person"))


def lives_since(pid: int, seen_at: float) -> bool:
    """Whether the process that had this number at `seen_at` (Unix seconds) still runs, and not a later one."""
    try:
        return psutil.Process(pid).create_time() <= seen_at + CLOCK_DRIFT_SECONDS
    except psutil.NoSuchProcess:
        return False
