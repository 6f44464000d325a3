"""Options that commands share, and how their help ends: with a line to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dflash_pipeline.contracts.errors import Refused

Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output, everything else on standard error.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
StorageDir = Annotated[
    Path, typer.Option("--storage", help="Storage folder; DFLASH_STORAGE wins.", envvar="DFLASH_STORAGE")
]
Lengths = Annotated[Path, typer.Option("--lengths", help=".npy, or .parquet with a column `length`.")]
Buckets = Annotated[str, typer.Option("--buckets", help="Number of buckets, or auto for the knee of the curve.")]
MOST_BUCKETS = 4096
RecipePath = Annotated[Path, typer.Argument(help="A recipe file, for example recipes/demo.yaml.", metavar="RECIPE")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change one setting: section.key=value. May be repeated.")
]


def example(line: str) -> str:
    """The end of a command's help. The mark keeps typer from breaking the line where it likes."""
    return f"\b\nExample:\n  {line}"


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> Any:
    """`value`, if it is allowed."""
    if value not in allowed:
        raise Refused(f"{value!r} is unknown", where=option, fix=f"use one of {', '.join(allowed)}")
    return value


def buckets_of(asked: str) -> int | Literal["auto"]:
    """The number that `--buckets` names, or "auto"."""
    if asked == "auto":
        return "auto"
    if not (asked.isascii() and asked.isdecimal()) or not 1 <= int(asked) <= MOST_BUCKETS:
        raise Refused(f"{asked!r}", where="--buckets", fix=f"give a number from 1 to {MOST_BUCKETS}, or auto")
    return int(asked)
