"""`dflash forecast`: what each strategy would cost and give, before a GPU-hour is spent."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from dflash_pipeline.cli.options import Buckets, Debug, Json, Lengths, buckets_of, example, one_of
from dflash_pipeline.cli.output import answering
from dflash_pipeline.contracts.batching import Strategy

_EXAMPLE = "dflash forecast --lengths lengths.npy --token-budget 32768 --slots-per-step 8 --tokens-per-second 28500"


def register(app: typer.Typer) -> None:
    app.command("forecast", epilog=example(_EXAMPLE))(forecast)


def forecast(
    lengths: Lengths,
    token_budget: Annotated[int, typer.Option("--token-budget", min=1, help="Padded tokens of a micro-batch.")] = 32768,
    slots_per_step: Annotated[int, typer.Option("--slots-per-step", min=1, help="Micro-batches of one step.")] = 8,
    micro_batches_per_rank: Annotated[
        int, typer.Option("--micro-batches-per-rank", min=1, help="Of a step, one after another on one rank.")
    ] = 1,
    strategy: Annotated[str, typer.Option("--strategy", help="The one to mark as chosen.")] = "window",
    buckets: Buckets = "6",
    grid: Annotated[int, typer.Option("--grid", min=1, help="Boundaries are multiples of this.")] = 1,
    quadratic_length: Annotated[
        float | None,
        typer.Option(
            "--quadratic-length", help="Length at which attention costs as much as the rest; without: linear."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of the order.")] = 0,
    tokens_per_second: Annotated[
        float | None,
        typer.Option("--tokens-per-second", min=1e-9, help="Useful tokens/s that sorted batches reach; for hours."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare all batching strategies for these lengths.

    Two epochs of each are planned and measured; none is estimated. Throughput is relative to sorted batches, by the
    cost model.
    """
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.forecast_files import ForecastRequest, forecast_files

        request = ForecastRequest(
            strategy=one_of("--strategy", strategy, get_args(Strategy)),
            token_budget=token_budget,
            slots_per_step=slots_per_step,
            micro_batches_per_rank=micro_batches_per_rank,
            num_buckets=buckets_of(buckets),
            grid=grid,
            quadratic_length=quadratic_length,
            seed=seed,
            tokens_per_second=tokens_per_second,
        )
        found = forecast_files(lengths, request)
        answer.say(found, lambda: print_forecast(found["strategies"], num_samples=found["num_samples"]))


def print_forecast(rows: list[dict[str, Any]], *, num_samples: int) -> None:
    """A table; the chosen strategy has a star. Samples that have no place are told of below it."""
    print(
        f"{'':17}{'steps':>10}{'padding':>9}{'overall':>9}{'distance':>10}{'repetition':>12}{'shapes':>8}{'speed':>7}"
    )
    for row in rows:
        hours = "" if row["hours"] is None else f"  {row['hours']:.1f} h an epoch"
        print(
            f"{'*' if row['chosen'] else ' '} {row['name']:15}{row['num_steps']:10,}{row['padding_efficiency']:9.4f}"
            f"{row['overall_efficiency']:9.4f}{row['length_distance']:10.1f}{row['pair_repetition']:12.2g}"
            f"{row['num_shapes']:8,}{row['relative_throughput']:7.3f}{hours}"
        )
    if dropped := {row["name"]: row["num_dropped"] for row in rows if row["num_dropped"]}:
        told = ", ".join(f"{count:,} by {name}" for name, count in dropped.items())
        print(f"left out of {num_samples:,} samples, without a token or above the token budget: {told}")
