"""What `dflash doctor` finds: one record a fault, with what mends it and whether that was done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

FindingKind = Literal[
    "stuck run",
    "queued run",
    "held slot",
    "orphaned rank",
    "wrong status",
    "unfinished",
    "set aside",
    "warehouse",
    "MLflow store",
    "Dagster store",
    "unreadable record",
    "damaged list",
    "low disk",
]
FindingState = Literal["found", "repaired", "for a person"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something that a crash, a full disk or an older version has left."""

    kind: FindingKind
    what: str
    where: str
    fix: str
    state: FindingState
    """`found`: `--repair` mends it. `for a person`: nothing is lost by leaving it, or only a person may decide."""

    def repaired(self) -> Finding:
        return replace(self, state="repaired")

    def resisted(self, reason: str, fix: str) -> Finding:
        """Still there although it was to be mended."""
        return replace(self, what=f"{self.what}; not mended: {reason}", fix=fix)
