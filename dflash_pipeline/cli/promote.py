"""`dflash promote`: who is champion, decided by measurement or by hand, and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, Overrides, StorageDir, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries


def register(app: typer.Typer) -> None:
    app.command("promote", epilog=example("dflash promote recipes/demo.yaml --rollback"))(promote)


def promote(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="A recipe file. Not needed with --run, nor with --rollback where one recipe has decisions.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="The champion before becomes champion again; again: one further back.")
    ] = False,
    run_name: Annotated[
        str | None, typer.Option("--run", help="Make this run champion, whatever was measured: a folder of exports/.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "by hand, no reason given",
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Judge a recipe's newest drafter against its champion.

    With --run or --rollback a person decides. Every decision is recorded with its reason, in promotions.jsonl and in
    MLflow's model registry, where the champion has the alias `champion`.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.promote import promote as decide

        found = decide(
            recipe, overrides or [], storage_dir=storage, rollback=rollback, run_name=run_name, reason=reason
        )
        answer.say(found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    print(f"{found['recipe']}: {found['run']} {found['action']}, {found['reason']}")
    champion = found["champion"]
    print("no champion" if champion is None else f"champion: {champion['run']}, {champion['export_dir']}")
