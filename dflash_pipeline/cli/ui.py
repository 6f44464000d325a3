"""`dflash ui`: the Dagster page and the MLflow page of a recipe's storage."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_pipeline.cli.options import Debug, RecipePath
from dflash_pipeline.cli.output import answering


def register(app: typer.Typer) -> None:
    app.command("ui")(ui)


def ui(
    recipe: RecipePath,
    dagster_port: Annotated[int, typer.Option("--dagster-port", min=1, max=65535)] = 3000,
    mlflow_port: Annotated[int, typer.Option("--mlflow-port", min=1, max=65535)] = 5000,
    debug: Debug = False,
) -> None:
    """Open both pages on 127.0.0.1 until Ctrl-C: dflash ui recipes/demo.yaml

    A port that is taken is replaced by the next free one.
    """
    with answering(as_json=False, debug=debug):
        from dflash_pipeline.assets.pages import serve_pages

        serve_pages(recipe, dagster_port=dagster_port, mlflow_port=mlflow_port)
