"""`dflash exclude`: takes conversations out of every later snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, StorageDir, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries
from dflash_pipeline.contracts.errors import Refused


def register(app: typer.Typer) -> None:
    app.command("exclude", epilog=example("dflash exclude some-id other-id --why 'answers are cut'"))(exclude)


def exclude(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Conversation ids; with --from-run, sample ids.", show_default=False),
    ] = None,
    why: Annotated[str, typer.Option("--why", help="A reason, kept with each id.", show_default=False)] = "",
    from_run: Annotated[
        str,
        typer.Option(
            "--from-run",
            help="A run: its samples ID, or without ID those that its loss spikes are due to.",
            show_default=False,
        ),
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Take the ids off the list again.")] = False,
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take conversations out of the training data.

    They are listed in exclusions.jsonl of the storage folder. The next `dflash run` makes a snapshot without them.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.exclusions import exclude as put
        from dflash_pipeline.stages.exclusions import exclude_of_run, restore

        named = ids or []
        if undo and (from_run or why):
            raise Refused("--undo goes with ids alone", where="dflash exclude", fix="name the conversations to restore")
        if not named and not from_run:
            raise Refused("there is nothing to exclude", where="dflash exclude", fix="give ids, or a run by --from-run")
        if undo:
            found = restore(named, storage)
        elif from_run:
            found = exclude_of_run(from_run, named, storage, why=why)
        else:
            found = put(named, storage, why=why)
        answer.say(found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    for name in found.get("excluded", ()):
        print(f"excluded {name}")
    for name in found.get("already", ()):
        print(f"excluded before: {name}")
    for name in found.get("restored", ()):
        print(f"restored {name}")
    print(
        f"{found['num_listed']:,} conversations are excluded, listed in {found['file']}; the next run leaves them out"
    )
