"""Every place at which the chain is killed: a fault point, the passing of it, and the storage the run starts from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Start = Literal["empty", "planned", "trained", "promoted"]
ROOT = Path(__file__).parents[2]
_POINT = re.compile(r"""fault_point\(\s*f?"([^"]+)"\s*\)""")
_ACT = re.compile(r"""new_folder\([^)]*act="([^"]+)"\s*\)""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """SIGKILL at the `passing`-th passing (from 1) of a point, in a run that starts from the storage `start`."""

    point: str
    passing: int
    start: Start

    @property
    def order(self) -> str:
        """The value of DFLASH_FAULT."""
        return f"kill:{self.point}:{self.passing}"


def _kills(start: Start, *orders: str) -> list[Kill]:
    pairs = [order.partition(":") for order in orders]
    return [Kill(point=name, passing=int(passing or 1), start=start) for name, _, passing in pairs]


KILLS = [
    *_kills("empty", "ingest.before-hash", "ingest.before-parse", "ingest.after-parse"),
    *_kills("empty", "warehouse.before-create", "warehouse.after-create"),
    # Commits in order: conversations, two batches of answers, sequences, histogram, boundaries, plan.
    *_kills("empty", *(f"warehouse.before-commit:{n}" for n in (1, 3, 4, 7))),
    *_kills("empty", *(f"warehouse.after-commit:{n}" for n in (1, 2, 4))),
    *_kills(
        "empty",
        "snapshot.before-write",
        "snapshot.after-chunk",
        "snapshot.before-hash",
        "snapshot.before-rename",
        "snapshot.after-rename",
    ),
    *_kills("empty", "file.before-rename", "file.after-rename"),
    *_kills("empty", "manifest.before-write", "manifest.after-write", "manifest.before-write:2"),
    *_kills("empty", "plan.before-seal", "plan.after-seal"),
    *_kills("planned", "features.before-write", "features.before-hash", "features.before-rename"),
    *_kills("planned", "features.after-rename"),
    *_kills("planned", "run.before-start", "run.after-start", "events.before-append"),
    # The first event is the start: the third is a step inside epoch 0, the eighth one inside epoch 1.
    *_kills("planned", "events.after-append:3", "events.after-append:8"),
    *_kills("planned", "spool.before-mark"),
    *_kills("planned", "checkpoint.before-write", "checkpoint.before-hash", "checkpoint.before-rename"),
    *_kills("planned", "checkpoint.after-rename", "checkpoint.before-rename:2", "checkpoint.after-rename:2"),
    *_kills("planned", "checkpoint.before-prune", "run.before-end", "run.after-end"),
    *_kills("trained", "export.before-write", "export.before-hash", "export.before-rename", "export.after-rename"),
    *_kills("trained", "report.before-write", "report.after-write"),
    *_kills("trained", "folder.before-put", "folder.before-list", "folder.after-put"),
    *_kills("trained", "promotion.before-append", "promotion.after-append"),
    *_kills("trained", "promotion.before-alias", "promotion.after-alias"),
    # Of a warm run, which begins with the champion.
    *_kills("promoted", "first-weights.before-write", "first-weights.before-hash"),
    *_kills("promoted", "first-weights.before-rename", "first-weights.after-rename"),
]

AGAIN_AND_AGAIN = _kills(
    "empty", "warehouse.after-commit:2", "snapshot.before-rename", "manifest.before-write:2", "plan.after-seal"
)
"""One after another in one storage: each in a stage that comes after the last one's."""

FEW = _kills("empty", "snapshot.before-rename", "manifest.after-write", "plan.before-seal")
"""Few enough for every commit: all before training, so that a run that only plans passes them."""


def points_in_the_source() -> set[str]:
    """Every fault point that the package's code marks; those of a folder once for each act that is named somewhere."""
    sources = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "dflash_pipeline").rglob("*.py"))]
    marked = {name for text in sources for name in _POINT.findall(text)}
    acts = {act for text in sources for act in _ACT.findall(text)}
    of_acts = {name for name in marked if name.startswith("{act}")}
    return (marked - of_acts) | {name.replace("{act}", act) for name in of_acts for act in acts}
