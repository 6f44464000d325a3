"""What every asset is given: the recipe, the storage, and a way to hand records on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.store.records import load_record, save_record

DEFAULT_RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "demo.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workbench:
    """One recipe and the storage it works in."""

    recipe: Recipe
    storage: Storage


def workbench_from_environment() -> Workbench:
    """`DFLASH_RECIPE` (a path; in a checkout the demo's) and `DFLASH_STORAGE`: read once, when the location loads."""
    given = os.environ.get("DFLASH_RECIPE")
    path = Path(given) if given else DEFAULT_RECIPE
    if not given and not path.exists():
        raise Refused("no recipe is named", where="DFLASH_RECIPE", fix="set it to the path of a recipe file")
    recipe = load_recipe(path)
    return Workbench(recipe=recipe, storage=open_storage(recipe.storage))


class RecordStore(dg.IOManager):
    """Hands a stage's record to the next stage as a JSON file, validated by the type that the next stage asks for.

    Within a run a stage gets what this run made, whatever another run on the same storage makes meanwhile; an asset
    that this run did not materialise comes from its newest materialisation.
    """

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        name = context.asset_key.to_python_identifier()
        save_record(self.workbench.storage.run_record(context.run_id, name), obj)
        save_record(self.workbench.storage.record(self.workbench.recipe.name, name), obj)

    def load_input(self, context: dg.InputContext) -> Any:
        name = context.asset_key.to_python_identifier()
        own = self.workbench.storage.run_record(context.step_context.run_id, name)
        newest = self.workbench.storage.record(self.workbench.recipe.name, name)
        return load_record(own if own.exists() else newest, context.dagster_type.typing_type)
