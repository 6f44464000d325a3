"""Where things lie under the storage folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Paths below one root. The root is absolute, so that a rank or a server in another folder finds the same files."""

    root: Path

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse.duckdb"

    @property
    def exclusions(self) -> Path:
        """Samples that a person has taken out."""
        return self.root / "exclusions.jsonl"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def plans(self) -> Path:
        return self.root / "plans"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def features(self) -> Path:
        return self.root / "features"

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def promotions(self) -> Path:
        """Every decision on who is champion, of all recipes, in order."""
        return self.root / "promotions.jsonl"

    @property
    def dagster_home(self) -> Path:
        return self.root / "dagster"

    def record(self, recipe_name: str, asset: str) -> Path:
        """The record that the newest materialisation of an asset handed on."""
        return self.dagster_home / "records" / recipe_name / f"{asset}.json"

    def run_record(self, dagster_run: str, asset: str) -> Path:
        """The record that an asset handed on in one Dagster run: another run beside it has records of its own."""
        return self.dagster_home / "records" / ".runs" / dagster_run / f"{asset}.json"


def open_storage(default: Path) -> Storage:
    """`DFLASH_STORAGE`, or the recipe's folder; relative to the working directory."""
    return Storage(root=Path(os.environ.get("DFLASH_STORAGE") or default).resolve())
