"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, everything else on standard error.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
StorageDir = Annotated[
    Path, typer.Option("--storage", help="Storage folder; DFLASH_STORAGE wins.", envvar="DFLASH_STORAGE")
]
RecipePath = Annotated[Path, typer.Argument(help="A recipe file, for example recipes/demo.yaml.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change one setting: section.key=value. May be repeated.")
]
