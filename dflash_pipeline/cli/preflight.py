"""`dflash preflight`: every fault of a recipe, its data and this machine, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, Overrides, RecipePath, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries


def register(app: typer.Typer) -> None:
    app.command("preflight", epilog=example("dflash preflight recipes/demo.yaml --num-ranks 1"))(preflight)


def preflight(
    recipe: RecipePath,
    overrides: Overrides = None,
    storage: Annotated[
        Path | None, typer.Option("--storage", help="Storage folder in place of the recipe's; DFLASH_STORAGE wins.")
    ] = None,
    num_ranks: Annotated[
        int | None, typer.Option("--num-ranks", min=1, help="Ranks in place of training.num_ranks.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List all faults that can be known now.

    Of the recipe, target, template, first rows, disk, memory and ports. Writes nothing. `dflash run` begins with it.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dataclasses import asdict

        from dflash_pipeline.assets.retraining import check_hours
        from dflash_pipeline.recipe import load_recipe
        from dflash_pipeline.stages.preflight import look_over
        from dflash_pipeline.stages.preflight.fault import noted
        from dflash_pipeline.store.layout import open_storage

        loaded = load_recipe(recipe, overrides or [])
        found = look_over(loaded, open_storage(storage or loaded.storage), num_ranks=num_ranks)
        faults = list(found.faults)
        with noted(faults):
            check_hours(loaded.schedule)
        facts = {"faults": [asdict(fault) for fault in faults], "seen": list(found.seen)}
        answer.say(facts, lambda: _show(facts))
        if faults:
            raise typer.Exit(1)


def _show(facts: dict[str, Any]) -> None:
    for fault in facts["faults"]:
        print(f"{fault['what']} — {fault['where']} — {fault['fix']}")
    if not facts["faults"]:
        print("no fault found; looked at:")
        for seen in facts["seen"]:
            print(f"  {seen}")
