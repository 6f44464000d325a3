"""`dflash boundaries`, `plan`, `manifest`: batching for any lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from dflash_pipeline.cli.options import Debug, Json
from dflash_pipeline.cli.output import answering
from dflash_pipeline.contracts.batching import OverlongPolicy, Padding, Strategy, TailPolicy
from dflash_pipeline.contracts.errors import Refused

Lengths = Annotated[Path, typer.Option("--lengths", help=".npy, or .parquet with a column `length`.")]


def register(app: typer.Typer) -> None:
    app.command("boundaries")(boundaries)
    app.command("plan")(plan)
    app.command("manifest")(manifest)


def boundaries(
    lengths: Lengths,
    buckets: Annotated[int, typer.Option("--buckets", min=1, help="Number of buckets.")] = 6,
    grid: Annotated[int, typer.Option("--grid", min=1, help="Boundaries are multiples of this.")] = 1,
    objective: Annotated[str, typer.Option("--objective", help="boundary: pad every sample to its boundary.")] = "boundary",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Boundaries of least padding: dflash boundaries --lengths lengths.npy --buckets 6"""
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.plan_files import boundary_facts

        _check(objective, ("boundary",), "--objective")
        found = boundary_facts(lengths, num_buckets=buckets, grid=grid)
        answer.say(found, lambda: print(f"{found['boundaries']}  efficiency {found['efficiency']:.4f}"))


def plan(
    lengths: Lengths,
    token_budget: Annotated[int, typer.Option("--token-budget", min=1, help="Padded tokens of a micro-batch.")],
    slots_per_step: Annotated[int, typer.Option("--slots-per-step", min=1)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the manifests.")],
    strategy: Annotated[str, typer.Option("--strategy", help="sorted, shuffle or bucket")] = "bucket",
    micro_batches_per_rank: Annotated[int, typer.Option("--micro-batches-per-rank", min=1)] = 1,
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    buckets: Annotated[int, typer.Option("--buckets", min=1)] = 6,
    grid: Annotated[int, typer.Option("--grid", min=1)] = 1,
    quadratic_length: Annotated[float | None, typer.Option("--quadratic-length", help="Empty: linear cost.")] = None,
    padding: Annotated[str, typer.Option("--padding", help="batch-max or boundary")] = "batch-max",
    tail: Annotated[str, typer.Option("--tail", help="fill or drop")] = "fill",
    overlong: Annotated[str, typer.Option("--overlong", help="refuse or drop samples above the budget")] = "refuse",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Manifests for any lengths: dflash plan --lengths lengths.npy --token-budget 32768 --slots-per-step 8 --out plan"""
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.plan_files import PlanRequest, plan_files

        request = PlanRequest(
            lengths=lengths,
            strategy=_check(strategy, get_args(Strategy), "--strategy"),
            token_budget=token_budget,
            slots_per_step=slots_per_step,
            micro_batches_per_rank=micro_batches_per_rank,
            epochs=epochs,
            seed=seed,
            num_buckets=buckets,
            grid=grid,
            quadratic_length=quadratic_length,
            padding=_check(padding, get_args(Padding), "--padding"),
            tail=_check(tail, get_args(TailPolicy), "--tail"),
            overlong=_check(overlong, get_args(OverlongPolicy), "--overlong"),
            out=out,
        )
        found = plan_files(request)
        answer.say(found, lambda: _show_plan(found))


def manifest(
    action: Annotated[str, typer.Argument(help="show, verify or diff")],
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Plan folders: one, or two to diff.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read, check or compare plans on disk: dflash manifest verify storage/plans/…"""
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.plan_files import diff_plans, show_plan, verify_plan

        _check(action, ("show", "verify", "diff"), "manifest")
        if action == "diff":
            found = diff_plans(folders)
            answer.say(found, lambda: _show_json(found))
            return
        if len(folders) != 1:
            raise Refused(f"{len(folders)} folders", where=f"manifest {action}", fix="give one plan folder")
        found = show_plan(folders[0]) if action == "show" else verify_plan(folders[0])
        answer.say(found, lambda: _show_plan(found) if action == "show" else _show_json(found))
        if not found.get("ok", True):
            raise typer.Exit(1)


def _check(value: str, allowed: tuple[str, ...], option: str) -> Any:
    if value not in allowed:
        raise Refused(f"{value!r} is unknown", where=option, fix=f"use one of {', '.join(allowed)}")
    return value


def _show_plan(found: dict[str, Any]) -> None:
    print(f"plan {found['plan']}: {found['total_steps']:,} steps in {len(found['epochs'])} epochs")
    for e in found["epochs"]:
        print(
            f"  epoch {e['epoch']}: {e['num_steps']:,} steps, {e['num_micro_batches']:,} micro-batches, "
            f"padding efficiency {e['padding_efficiency']:.4f}, {e['fillers']} fillers, {len(e['dropped'])} dropped"
        )


def _show_json(found: dict[str, Any]) -> None:
    from dflash_pipeline.cli.output import print_json

    print_json(found)
