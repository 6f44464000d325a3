"""The first check of a run. It is made inside the first asset, before a row is read: a check of its own comes after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from dflash_pipeline.assets.metadata import count, table

if TYPE_CHECKING:
    from dflash_pipeline.stages.preflight import Findings

PREFLIGHT = dg.AssetCheckSpec(
    "preflight",
    asset="conversations",
    blocking=True,
    description="Recipe, target, first rows and machine show no fault. With one, nothing starts; all are listed.",
)


def preflight_result(found: Findings) -> dg.AssetCheckResult:
    """The check's outcome, with every fault and what was looked at."""
    return dg.AssetCheckResult(
        check_name=PREFLIGHT.name,
        passed=not found.faults,
        description="\n".join(str(fault) for fault in found.faults) or "no fault found",
        metadata={
            "faults": count(len(found.faults)),
            "listed": table(("where", "what", "fix"), [(f.where, f.what, f.fix) for f in found.faults]),
            "looked_at": table(("what",), [(seen,) for seen in found.seen]),
        },
    )
