"""`dflash compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, StorageDir, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries


def register(app: typer.Typer) -> None:
    app.command("compare", epilog=example("dflash compare 4be1c0d2 9c02a7f3 --out compared.html"))(compare)


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Two runs or more: names of their folders in runs/.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write a page with pictures here.", show_default=False)
    ] = None,
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs: what differs, and did it help.

    Settings, loss and acceptance against cost, speed and padding of every epoch, loss events, alarms and verdicts. The
    first run is what the others are held against.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.comparison import compare_in, comparison_facts
        from dflash_pipeline.stages.comparison_page import acceptance_sentences, summary_rows, write_page

        comparison = compare_in(storage, runs)
        found = comparison_facts(comparison) | {"page": None if out is None else str(out)}
        if out is not None:
            write_page(comparison, out)
        rows, sentences = summary_rows(comparison.runs), list(acceptance_sentences(comparison.runs))
        answer.say(found, lambda: _show(found, rows, sentences))


def _show(found: dict[str, Any], rows: list[list[str]], sentences: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    names = [run["run"] for run in found["runs"]]
    differences = Table(title="What differs", title_justify="left")
    summary = Table(title="What came of it", title_justify="left")
    for table, first in ((differences, "setting"), (summary, "")):
        for name in (first, *names):
            table.add_column(name, overflow="fold")
    for name, values in found["differences"].items():
        differences.add_row(name, *("not told" if value is None else value for value in values.values()))
    for row in rows:
        summary.add_row(*row)
    console.print(differences if found["differences"] else "No setting differs.")
    console.print(summary)
    for sentence in sentences:
        console.print(sentence)
    if found["page"]:
        console.print(f"page: {found['page']}")
