"""`dflash run`, `train` and `sync`: the whole chain, the training op alone, and its curves sent again."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.dry_run import show_dry_run
from dflash_pipeline.cli.options import Debug, Json, Overrides, RecipePath, StorageDir, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries
from dflash_pipeline.contracts.errors import Refused

_LOSSES = {
    True: "output equals the target's own",
    False: "OUTPUT DIFFERS FROM the target's own",
    None: "drawn at a temperature",
}


def register(app: typer.Typer) -> None:
    app.command("run", epilog=example("dflash run recipes/demo.yaml --set batching.seed=7"))(run)
    app.command("train", epilog=example("dflash train recipes/demo.yaml --fresh"))(train)
    app.command("sync", epilog=example("dflash sync 0123456789abcdef"))(sync)


def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say steps, memory, storage and hours. Writes nothing, looks at no GPU.")
    ] = False,
    lengths: Annotated[
        Path | None,
        typer.Option("--lengths", help="For --dry-run: lengths from .npy, or .parquet with a column `length`."),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Stop before training: data, boundaries and plan are made.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again instead of resuming or reusing the run.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Materialise the whole chain in one Dagster run.

    From the source files to a measured drafter.
    What exists and is unchanged is reused; what was interrupted goes on where it stopped.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        if dry_run:
            found = _dry_run(recipe, overrides or [], lengths, fresh=fresh, plan_only=plan_only, known=answer.known)
            answer.say(found, lambda: show_dry_run(found))
            return
        if lengths is not None:
            raise Refused("it is for a dry run", where="--lengths", fix="add --dry-run, or leave it out")
        from dataclasses import asdict

        from dflash_pipeline.assets.resources import Workbench
        from dflash_pipeline.assets.whole_run import facts, run_whole_chain
        from dflash_pipeline.recipe import load_recipe
        from dflash_pipeline.stages.preflight import find_faults, refuse
        from dflash_pipeline.store.layout import open_storage

        loaded = load_recipe(recipe, overrides or [])
        workbench = Workbench(recipe=loaded, storage=open_storage(loaded.storage))
        # The first asset looks again. Here nothing exists yet: no storage folder, and no Dagster run that failed.
        faults = find_faults(loaded, workbench.storage)
        if faults:
            answer.known["faults"] = [asdict(fault) for fault in faults]
        refuse(faults, recipe_name=loaded.name)
        finished = run_whole_chain(workbench, fresh=fresh, plan_only=plan_only)
        found = facts(finished, plan_only=plan_only)
        answer.say(found, lambda: _show(found, ui=f"dflash ui {recipe}"))


def _dry_run(
    recipe: Path,
    overrides: list[str],
    lengths: Path | None,
    *,
    fresh: bool,
    plan_only: bool,
    known: dict[str, Any],
) -> dict[str, Any]:
    from dflash_pipeline.recipe import load_recipe
    from dflash_pipeline.stages.dry_run import dry_run
    from dflash_pipeline.store.layout import open_storage

    if fresh or plan_only:
        beside = "--fresh" if fresh else "--plan-only"
        raise Refused("a dry run makes nothing", where=f"--dry-run {beside}", fix=f"leave {beside} out")
    loaded = load_recipe(recipe, overrides)
    return dry_run(loaded, open_storage(loaded.storage), lengths, known=known)


def train(
    recipe: RecipePath,
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again instead of resuming or reusing the run.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train on a recipe's newest plan, without Dagster.

    The plan must exist (`dflash run RECIPE --plan-only` makes it). Prints the torchrun line it uses.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dataclasses import asdict

        from dflash_pipeline.stages.training_alone import train_alone

        made, line = train_alone(recipe, overrides or [], fresh=fresh, tell=partial(print, file=sys.stderr))
        print(" ".join(line), file=sys.stderr)
        answer.say(asdict(made.record) | {"reused": made.reused}, lambda: _show_trained(asdict(made.record)))


def sync(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="A run: the name of its folder in runs/.")],
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Send MLflow what a run's event log has and its page lacks. Sending again sends nothing twice."""
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.sync_run import sync_run

        found = sync_run(run_name, storage)
        answer.say(found, lambda: print(f"{found['points']:,} points and {found['params']:,} parameters sent"))


def _show(found: dict[str, Any], *, ui: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title="What this run made", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    rows = found["rows"]
    table.add_row(
        "rows", f"{rows['accepted']:,} accepted, {rows['rejected']:,} rejected, {rows['exact_duplicates']:,} duplicates"
    )
    table.add_row("tokens", f"{found['tokens']['all']:,}, of which {found['tokens']['supervised']:,} supervised")
    table.add_row("boundaries", str(found["boundaries"]))
    for epoch in found["epochs"]:
        table.add_row(
            f"epoch {epoch['epoch']}",
            f"{epoch['num_steps']:,} steps, padding efficiency {epoch['padding_efficiency']:.3f}",
        )
    table.add_row("plan", f"{found['plan']}: {found['total_steps']:,} steps")
    if "acceptance" in found:
        _add_trained(table, found)
    table.add_row("reused", ", ".join(found["reused"]) or "nothing")
    table.add_row("time", f"{found['seconds']:.0f} s")
    console.print(table)
    console.print(f"The pages (Dagster and MLflow): {ui}")


def _add_trained(table: Any, found: dict[str, Any]) -> None:
    speed, acceptance = found["tokens_per_second"], found["acceptance"]
    if found["warm_start"]:
        table.add_row("begun with", f"the weights of champion {found['warm_start']}")
    table.add_row("loss", f"{found['loss']['first']:.3f} at the first step, {found['loss']['last']:.3f} at the last")
    if found["stopped_early"]:
        done, total = found["steps_done"], found["total_steps"]
        table.add_row("stopped early", f"after {done:,} of {total:,} steps: {found['stopped_early']}")
    table.add_row("throughput", f"{speed['useful']:,.0f} useful tokens/s ({speed['padded']:,.0f} padded)")
    table.add_row(
        "acceptance length",
        f"{acceptance['before']:.2f} before training, {acceptance['trained']:.2f} after "
        f"(95 %: {acceptance['interval'][0]:.2f} to {acceptance['interval'][1]:.2f}, "
        f"{acceptance['num_prompts']} held-out prompts, "
        f"{_LOSSES[acceptance['lossless']]})",
    )
    table.add_row("drafter", found["export_dir"])
    table.add_row("champion", f"{found['promotion']['action']}: {found['promotion']['reason']}")


def _show_trained(trained: dict[str, Any]) -> None:
    done, total = trained["steps_done"], trained["total_steps"]
    why = f"early, {early}" if (early := trained["stopped_early"]) else "at training.max_steps"
    limited = "" if done == total else f", stopped {why}: {done:,} of {total:,} steps"
    losses = f"loss {trained['first_loss']:.3f} to {trained['last_loss']:.3f}"
    print(f"run {trained['run']}: {losses}, {trained['run_dir']}{limited}")
