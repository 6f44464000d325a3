"""`dflash init` and `dflash explain`: a recipe to begin with, and every setting of one in words."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, Overrides, RecipePath, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.contracts.errors import Refused


def register(app: typer.Typer) -> None:
    app.command("init", epilog=example("dflash init mine.yaml --source chats.jsonl --target models/target"))(init)
    app.command("explain", epilog=example("dflash explain recipes/demo.yaml --section batching"))(explain)


def init(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The file to write; it must not exist.")],
    source: Annotated[list[Path], typer.Option("--source", help="A file, folder or pattern. May be repeated.")],
    target: Annotated[Path, typer.Option("--target", help="The target's folder.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the line of drafters and its MLflow experiment. As the file's.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a first recipe.

    Sources and target as you give them, and what most runs change as comments. `dflash preflight` then looks it over.
    """
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.recipe.beginning import first_recipe
        from dflash_pipeline.store.files import write_atomic

        if os.path.lexists(recipe):
            raise Refused("the file exists", where=str(recipe), fix="give another name, or remove it")
        if not recipe.parent.is_dir():
            raise Refused("there is no such folder", where=str(recipe.parent), fix="make it first")
        text = first_recipe(
            file=recipe.name,
            name=recipe.stem.lower() if name is None else name,
            sources=[_from(recipe, path) for path in source],
            target=_from(recipe, target),
        )
        write_atomic(recipe, text)
        answer.say(
            {"recipe": str(recipe)},
            lambda: print(f"{recipe} is written. Next: dflash preflight {recipe}"),
        )


def explain(
    recipe: RecipePath,
    overrides: Overrides = None,
    section: Annotated[
        str | None, typer.Option("--section", help="Only settings whose name begins so: batching, data.max_length.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not the default.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Every setting of a recipe in words.

    Its value, its default where that differs, its bounds and what it is for.
    """
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.recipe import load_recipe
        from dflash_pipeline.recipe.explained import explained

        all_settings = explained(load_recipe(recipe, overrides or []))
        inside = [one for one in all_settings if section is None or f"{one.name}.".startswith(f"{section}.")]
        if not inside:
            names = ", ".join(dict.fromkeys(one.name.partition(".")[0] for one in all_settings))
            raise Refused(f"there is no setting {section!r}", where="--section", fix=f"use one of {names}")
        settings = [asdict(one) | {"changed": one.changed} for one in inside if one.changed or not changed]
        answer.say({"settings": settings}, lambda: _show(settings))


def _from(recipe: Path, path: Path) -> str:
    """The path as the recipe's file has to name it."""
    if path.is_absolute():
        return str(path)
    return os.path.relpath(path, start=recipe.parent)


def _show(settings: list[dict[str, Any]]) -> None:
    for setting in settings:
        line = f"{setting['name']}: {_yaml(setting['value'])}"
        if setting["changed"] and not setting["required"]:
            line += f"    (default {_yaml(setting['default'])})"
        print(line)
        if says := " ".join(part for part in (setting["sentence"], _bounds(setting["allowed"])) if part):
            print(f"    {says}")


def _bounds(allowed: str) -> str:
    return f"[{allowed}]" if allowed else ""


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
