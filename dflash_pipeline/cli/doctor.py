"""`dflash doctor`: what crashes have left behind, and with `--repair` no more of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, StorageDir, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries
from dflash_pipeline.contracts.errors import Refused


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog=example("dflash doctor --repair"))(doctor)


def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be put right without a person.")] = False,
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find, and mend, what crashes left behind.

    Stuck and forgotten runs, held slots, orphaned ranks, wrong MLflow statuses, unfinished files, databases and records
    that are damaged or of another version, low disk. Exit code 1 if something is left that `--repair` would mend.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.assets.doctor import examine
        from dflash_pipeline.store.layout import open_storage

        opened = open_storage(storage)
        if not opened.root.is_dir():
            raise Refused("there is no such storage folder", where=str(opened.root), fix="give it with --storage")
        found = examine(opened, repair=repair)
        left = [finding for finding in found if finding.state == "found"]
        facts = {"ok": not left, "findings": [asdict(finding) for finding in found]}
        answer.say(facts, lambda: _show(facts["findings"]))
        if left:
            raise typer.Exit(1)


def _show(findings: Any) -> None:
    for finding in findings:
        mark = {"found": "FOUND   ", "repaired": "repaired", "for a person": "note    "}[finding["state"]]
        print(f"{mark} {finding['kind']}: {finding['where']}: {finding['what']}")
        if finding["state"] != "repaired":
            print(f"         {finding['fix']}")
    if not findings:
        print("nothing found")
