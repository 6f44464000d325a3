"""`dflash ui`: the Dagster page and the MLflow page of a recipe's storage."""

from __future__ import annotations

import sys
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
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at. Others than this machine's own need --allow-remote.")
    ] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Let other machines reach the pages, which have no login."),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve the Dagster and the MLflow page.

    On 127.0.0.1, to this machine only, until Ctrl-C. A second Ctrl-C does not wait for a training's checkpoint.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.assets.addresses import allowed_host
        from dflash_pipeline.assets.pages import Wanted, serve_pages

        def tell(pages: Pages) -> None:
            found = {"dagster": pages.dagster, "mlflow": pages.mlflow, "experiment": pages.experiment}
            answer.say(found, lambda: _show(pages))

        allowed = allowed_host(host, remote=allow_remote)
        wanted = Wanted(host=allowed, dagster_port=dagster_port, mlflow_port=mlflow_port)
        serve_pages(recipe, wanted, tell=tell, note=_note)


def _note(text: str) -> None:
    print(f"dflash: {text}", file=sys.stderr, flush=True)


def _show(pages: Pages) -> None:
    print(f"Dagster  {pages.dagster}")
    print(f"MLflow   {pages.mlflow}   (experiment {pages.experiment})")
    print("Ctrl-C ends the servers that this command has started.", flush=True)
