"""Drafters that can be champion, from their folders; and the registry, brought up to what was decided about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.promotion import Contender, PromotionDecision, reign
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.files import file_sha256, folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import read_decisions
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.settings import LaunchConfig

if TYPE_CHECKING:
    from dflash_pipeline.tracking.registry import Alias, VersionFacts


def contender_of(storage: Storage, export: str) -> Contender:
    """A whole export in z-lab's form, and the run it is of."""
    launch, folder = _launch(storage, export), storage.exports / export
    if faults := folder_faults(folder):
        raise Refused("; ".join(faults), where=str(folder), fix="run its recipe again: a damaged export is made anew")
    run_dir = storage.runs / _run_of(export)
    return Contender(
        run=run_dir.name,
        export=export,
        weights=file_sha256(folder / "model.safetensors"),
        target=launch.target,
        snapshot=Path(launch.snapshot_dir).name,
        plan=launch.plan,
        mlflow_run_id=load_record(run_dir / "run.json", RunRecord).mlflow_run_id,
    )


def export_of(storage: Storage, name: str) -> str:
    """The folder of exports/ that a name means: its own, or a run's only one, for a run that stopped before its end."""
    reached = sorted(path.name for path in storage.exports.glob(f"{name}-step-*") if "." not in path.name)
    return reached[0] if not (storage.exports / name).is_dir() and len(reached) == 1 and "*" not in name else name


def recipe_of(storage: Storage, export: str) -> str:
    """The name of the recipe that an export's run was trained for."""
    return _launch(storage, export).experiment


def _launch(storage: Storage, export: str) -> LaunchConfig:
    folder, path = storage.exports / export, storage.runs / _run_of(export) / "launch.json"
    # A run's name holds no dot; so neither `..` nor what was set aside as damaged is one.
    if "/" in export or "." in export or not folder.is_dir() or not path.exists():
        raise Refused(
            "there is no such export, or its run is gone",
            where=str(folder),
            fix="name a folder of exports/ without -speculators, for example as `ls` shows it",
        )
    return load_record(path, LaunchConfig)


def _run_of(export: str) -> str:
    """What a limited run has reached is called after the run and its step."""
    return export.partition("-step-")[0]


def settle_registry(recipe_name: str, storage: Storage, contender: Contender) -> None:
    """Versions for the contender and for who reigns and reigned before; then aliases as the decisions have them."""
    from dflash_pipeline.tracking.registry import ensure_version, set_aliases

    # Where its run is tracked; an address of nothing is the storage's own.
    uri = _launch(storage, contender.export).tracking_uri or tracking_uri(storage.root)
    decisions = read_decisions(storage.promotions, recipe_name)
    line = reign(decisions)
    held: dict[Alias, Contender] = {}
    if line:
        held["champion"] = line[-1]
    if len(line) > 1:
        held["previous"] = line[-2]
    if not line or line[-1].weights != contender.weights:
        held["challenger"] = contender
    versions = {
        alias: ensure_version(uri, recipe_name, _facts(storage, drafter, decisions)) for alias, drafter in held.items()
    }
    set_aliases(uri, recipe_name, versions)


def _facts(storage: Storage, drafter: Contender, decisions: Sequence[PromotionDecision]) -> VersionFacts:
    from dflash_pipeline.tracking.registry import VersionFacts

    about = [decision for decision in decisions if decision.contender.weights == drafter.weights]
    tags = {"run": drafter.run, "snapshot": drafter.snapshot, "plan": drafter.plan, "target": drafter.target}
    if about:
        last = about[-1]
        tags |= {
            "decision": last.action,
            "reason": last.reason,
            "decided": datetime.fromtimestamp(last.unix_seconds, tz=UTC).isoformat(timespec="seconds"),
        }
        measured = [decision.standing for decision in about if decision.standing is not None]
        if measured:
            tags["acceptance"] = f"{measured[-1].mean:.4f}"
    return VersionFacts(
        weights=drafter.weights,
        source=(storage.exports / drafter.export).as_uri(),
        mlflow_run_id=drafter.mlflow_run_id,
        tags=tags,
    )
