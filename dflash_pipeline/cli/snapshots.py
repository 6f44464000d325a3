"""`dflash diff-snapshots`: what changed from one snapshot of tokens to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, StorageDir, example
from dflash_pipeline.cli.output import answering


def register(app: typer.Typer) -> None:
    app.command("diff-snapshots", epilog=example("dflash diff-snapshots 4be1 9c02"))(diff_snapshots)


def diff_snapshots(
    before: Annotated[str, typer.Argument(metavar="A", help="A snapshot: its name, or the beginning of it.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare two snapshots: their rows and lengths."""
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.snapshots import snapshot_differences

        found = snapshot_differences(before, after, storage)
        answer.say(found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    for kind in ("added", "removed", "changed"):
        rows = found["rows"][kind]
        shown = ", ".join(rows["ids"][:10]) + (", …" if rows["count"] > 10 else "")
        print(f"{rows['count']:,} rows {kind}{': ' if shown else ''}{shown}")
    print(f"{found['rows']['unchanged']:,} rows unchanged")
    if not found["same_rule"]:
        print("The two were made under different rules: another tokenizer, template, length or supervision.")
    before, after = found["before"], found["after"]
    for name in ("num_samples", "num_tokens", "num_supervised_tokens"):
        print(f"{name.removeprefix('num_').replace('_', ' ')}: {before[name]:,} before, {after[name]:,} after")
    for name in before["lengths"]:
        print(f"length, {name}: {before['lengths'][name]:,.0f} before, {after['lengths'][name]:,.0f} after")
    for reason in sorted({*before["dropped"], *after["dropped"]}):
        print(f"{reason}: {before['dropped'].get(reason, 0):,} before, {after['dropped'].get(reason, 0):,} after")
    print(f"cut at the longest length: {before['cut']['count']:,} before, {after['cut']['count']:,} after")
