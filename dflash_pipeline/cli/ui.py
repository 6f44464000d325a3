"""`dflash ui`: the Dagster page and the MLflow page of a recipe's storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dflash_pipeline.cli.options import Debug, Json, RecipePath, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries

if TYPE_CHECKING:
    from dflash_pipeline.assets.pages import Pages


def register(app: typer.Typer) -> None:
    app.command("ui", epilog=example("dflash ui recipes/demo.yaml --dagster-port 3000"))(ui)


def ui(
    recipe: RecipePath,
    dagster_port: Annotated[
        int, typer.Option("--dagster-port", min=1, max=65535, help="Of the Dagster page; the next free one if taken.")
    ] = 3000,
    mlflow_port: Annotated[
        int, typer.Option("--mlflow-port", min=1, max=65535, help="Of the MLflow page; the next free one if taken.")
    ] = 5000,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve the Dagster and the MLflow page.

    On 127.0.0.1, to this machine only, until Ctrl-C.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.assets.pages import serve_pages

        def tell(pages: Pages) -> None:
            found = {"dagster": pages.dagster, "mlflow": pages.mlflow, "experiment": pages.experiment}
            answer.say(found, lambda: _show(pages))

        serve_pages(recipe, dagster_port=dagster_port, mlflow_port=mlflow_port, tell=tell)


def _show(pages: Pages) -> None:
    print(f"Dagster  {pages.dagster}")
    print(f"MLflow   {pages.mlflow}   (experiment {pages.experiment})")
    print("Ctrl-C ends both.", flush=True)
