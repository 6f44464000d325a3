"""`dflash report`: a page on one's own data, before anything is trained."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.data import mapping_of
from dflash_pipeline.cli.forecast import print_forecast
from dflash_pipeline.cli.options import Buckets, Debug, Json, buckets_of, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries

_EXAMPLE = "dflash report --source chats.jsonl --tokenizer models/target --out report.html"


def register(app: typer.Typer) -> None:
    app.command("report", epilog=example(_EXAMPLE))(report)


def report(
    source: Annotated[list[Path], typer.Option("--source", help="A file, folder or pattern. May be repeated.")],
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="A tokenizer folder, or the target's own folder.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    chat_template: Annotated[
        Path | None, typer.Option("--chat-template", help="A Jinja file in place of the tokenizer's own template.")
    ] = None,
    mapping: Annotated[
        str, typer.Option("--map", help="Fields that hold turns, for example question=user,answer=assistant.")
    ] = "",
    max_length: Annotated[int, typer.Option("--max-length", min=2, help="Longest sample in tokens.")] = 8192,
    token_budget: Annotated[int, typer.Option("--token-budget", min=1, help="Padded tokens of a micro-batch.")] = 32768,
    slots_per_step: Annotated[int, typer.Option("--slots-per-step", min=1, help="Micro-batches of one step.")] = 8,
    buckets: Buckets = "6",
    quadratic_length: Annotated[
        float | None,
        typer.Option(
            "--quadratic-length", help="Length at which attention costs as much as the rest; without: linear."
        ),
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option("--tokens-per-second", min=1e-9, help="Useful tokens/s that sorted batches reach; for hours."),
    ] = None,
    storage: Annotated[
        Path | None, typer.Option("--storage", help="Keep what was ingested here; without it, nothing is kept.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a page on your own data.

    Lengths, boundaries, waste and speed of each strategy, rejected rows. Needs a tokenizer, no model.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer, tempfile.TemporaryDirectory(prefix="dflash-") as scratch:
        from dflash_pipeline.stages.forecast_files import ForecastRequest
        from dflash_pipeline.stages.ingest_files import IngestRequest
        from dflash_pipeline.stages.report import make_report

        ingest = IngestRequest(
            sources=tuple(source),
            tokenizer=tokenizer,
            chat_template=chat_template,
            mapping=mapping_of(mapping),
            format=None,
            supervise="all",
            max_length=max_length,
            overlong="truncate",
            max_row_bytes=64 * 2**20,
        )
        batching = ForecastRequest(
            strategy="window",
            token_budget=token_budget,
            slots_per_step=slots_per_step,
            micro_batches_per_rank=1,
            num_buckets=buckets_of(buckets),
            grid=1,
            quadratic_length=quadratic_length,
            seed=0,
            tokens_per_second=tokens_per_second,
        )
        found = make_report(ingest, batching, storage or Path(scratch), out, known=answer.known)
        answer.say(found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    print(
        f"{found['accepted']:,} rows accepted, {found['rejected']:,} rejected, {found['exact_duplicates']:,} exact "
        f"duplicates; {found['num_tokens']:,} tokens"
    )
    print_forecast(found["strategies"], num_samples=found["num_samples"])
    print(f"page: {found['page']}")
