"""`dflash promote`: the same decisions as in the chain, asked for from a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.promotion import PromotionDecision
from dflash_pipeline.contracts.results import ExportedDrafter
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.stages.acceptance import make_report
from dflash_pipeline.stages.contenders import export_of, recipe_of
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.promotion import make_champion, promote_by_hand, roll_back
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.store.promotions import read_all_decisions
from dflash_pipeline.store.records import load_record


def promote(
    recipe_path: Path | None,
    overrides: Sequence[str],
    *,
    storage_dir: Path,
    rollback: bool,
    run_name: str | None,
    reason: str,
) -> dict[str, Any]:
    """What was decided, by measurement or by hand."""
    if rollback and run_name is not None:
        raise Refused("two wishes at once", where="--rollback --run", fix="give one of them")
    recipe = None if recipe_path is None else load_recipe(recipe_path, overrides)
    storage = open_storage(storage_dir if recipe is None else recipe.storage)
    if run_name is not None:
        export = export_of(storage, run_name)
        decision = promote_by_hand(recipe_of(storage, export), storage, export, reason=reason)
        return facts_of(decision, storage) | {"reused": False}
    if rollback:
        name = _only_recipe(storage) if recipe is None else recipe.name
        return facts_of(roll_back(name, storage, reason=reason), storage) | {"reused": False}
    if recipe is None:
        raise Refused("no recipe is named", where="dflash promote", fix="give a recipe, --run RUN or --rollback")
    made = _newest(recipe, storage)
    return facts_of(made.record, storage) | {"reused": made.reused}


def facts_of(decision: PromotionDecision, storage: Storage) -> dict[str, Any]:
    """A decision in the form that scripts read."""
    champion = decision.champion
    return {
        "recipe": decision.recipe,
        "run": decision.contender.run,
        "action": decision.action,
        "reason": decision.reason,
        "by_hand": decision.by_hand,
        "champion": None
        if champion is None
        else {"run": champion.run, "export_dir": str(storage.exports / champion.export)},
        "difference": None if decision.difference is None else asdict(decision.difference),
    }


def _newest(recipe: Recipe, storage: Storage) -> Made[PromotionDecision]:
    ingestion = load_record(storage.record(recipe.name, "conversations"), Ingestion)
    exported = load_record(storage.record(recipe.name, "exported_drafter"), ExportedDrafter)
    comparison = make_report(recipe, storage, ingestion, exported).record
    return make_champion(recipe, storage, ingestion, exported, comparison)


def _only_recipe(storage: Storage) -> str:
    names = sorted({decision.recipe for decision in read_all_decisions(storage.promotions)})
    if len(names) != 1:
        raise Refused(
            f"decisions on {len(names)} recipes",
            where=str(storage.promotions),
            fix="give a recipe file" + (f" of one of: {', '.join(names)}" if names else ": nothing was decided yet"),
        )
    return names[0]
