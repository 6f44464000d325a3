"""`dflash boundaries`, `plan`, `manifest`: batching for any lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from dflash_pipeline.cli.options import Buckets, Debug, Json, Lengths, buckets_of, example, one_of
from dflash_pipeline.cli.output import answering
from dflash_pipeline.contracts.batching import Objective, OverlongPolicy, Padding, Strategy, TailPolicy
from dflash_pipeline.contracts.errors import Refused

_PLAN_EXAMPLE = "dflash plan --lengths lengths.npy --token-budget 32768 --slots-per-step 8 --epochs 3 --out plan"


def register(app: typer.Typer) -> None:
    app.command("boundaries", epilog=example("dflash boundaries --lengths lengths.npy --buckets 6"))(boundaries)
    app.command("plan", epilog=example(_PLAN_EXAMPLE))(plan)
    app.command("manifest", epilog=example("dflash manifest verify storage/plans/0123456789abcdef"))(manifest)


def boundaries(
    lengths: Lengths,
    buckets: Buckets = "6",
    grid: Annotated[int, typer.Option("--grid", min=1, help="Boundaries are multiples of this.")] = 1,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="Pad every sample to its boundary (boundary), or a micro-batch to its expected longest (batch-max).",
        ),
    ] = "boundary",
    token_budget: Annotated[
        int | None, typer.Option("--token-budget", min=1, help="Padded tokens of a micro-batch, for batch-max.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find the bucket boundaries of least padding."""
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.plan_files import boundary_facts

        found = boundary_facts(
            lengths,
            num_buckets=buckets_of(buckets),
            grid=grid,
            objective=one_of("--objective", objective, get_args(Objective)),
            token_budget=token_budget,
        )
        answer.say(found, lambda: print(f"{found['boundaries']}  efficiency {found['efficiency']:.4f}"))


def plan(
    lengths: Lengths,
    token_budget: Annotated[int, typer.Option("--token-budget", min=1, help="Padded tokens of a micro-batch.")],
    slots_per_step: Annotated[int, typer.Option("--slots-per-step", min=1, help="Micro-batches of one step.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the manifests.")],
    strategy: Annotated[
        str, typer.Option("--strategy", help="One of sorted, shuffle, bucket, window, varlen.")
    ] = "window",
    micro_batches_per_rank: Annotated[
        int, typer.Option("--micro-batches-per-rank", min=1, help="Of a step; balance is planned for it.")
    ] = 1,
    epochs: Annotated[int, typer.Option("--epochs", min=1, max=1000, help="Number of epochs.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of the order.")] = 0,
    buckets: Buckets = "6",
    grid: Annotated[int, typer.Option("--grid", min=1, help="Boundaries are multiples of this.")] = 1,
    quadratic_length: Annotated[
        float | None,
        typer.Option(
            "--quadratic-length", help="Length at which attention costs as much as the rest; without: linear."
        ),
    ] = None,
    padding: Annotated[
        str,
        typer.Option(
            "--padding", help="Pad to the micro-batch's longest sample (batch-max) or to its boundary (boundary)."
        ),
    ] = "batch-max",
    tail: Annotated[str, typer.Option("--tail", help="An unfilled last step: fill or drop.")] = "fill",
    overlong: Annotated[
        str, typer.Option("--overlong", help="A sample above the token budget: refuse or drop.")
    ] = "refuse",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Plan epochs for any lengths.

    One Parquet file an epoch, sealed by a plan.
    """
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.plan_files import PlanRequest, plan_files

        request = PlanRequest(
            lengths=lengths,
            strategy=one_of("--strategy", strategy, get_args(Strategy)),
            token_budget=token_budget,
            slots_per_step=slots_per_step,
            micro_batches_per_rank=micro_batches_per_rank,
            epochs=epochs,
            seed=seed,
            num_buckets=buckets_of(buckets),
            grid=grid,
            quadratic_length=quadratic_length,
            padding=one_of("--padding", padding, get_args(Padding)),
            tail=one_of("--tail", tail, get_args(TailPolicy)),
            overlong=one_of("--overlong", overlong, get_args(OverlongPolicy)),
            out=out,
        )
        found = plan_files(request)
        answer.say(found, lambda: _show_plan(found))


def manifest(
    action: Annotated[str, typer.Argument(help="show, verify or diff", metavar="ACTION")],
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Plan folders: one, or two to diff.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read, check or compare plans on disk."""
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.plan_files import diff_plans, show_plan, verify_plan

        one_of("manifest", action, ("show", "verify", "diff"))
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
