"""`dflash spikes`: where the loss of a run, or any series of losses, left its band."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, StorageDir, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries
from dflash_pipeline.contracts.errors import Refused

MOST_NAMED = 8


def register(app: typer.Typer) -> None:
    app.command("spikes", epilog=example("dflash spikes --losses losses.json --json"))(spikes)


def spikes(
    run_name: Annotated[
        str, typer.Argument(metavar="RUN", help="A run: the name of its folder in runs/.", show_default=False)
    ] = "",
    losses: Annotated[
        Path | None,
        typer.Option(
            "--losses", help="A series: JSON, JSON lines or CSV with loss, and step, bucket, epoch, sample_ids."
        ),
    ] = None,
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the loss spikes of a run, or of a series in a file.

    Slow rises and level shifts are among the events, not among the flagged steps.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.spikes import spikes_in_file, spikes_of_run

        if bool(run_name) == (losses is not None):
            raise Refused("needs a run or a file", where="dflash spikes", fix="give either RUN or --losses FILE")
        found = spikes_of_run(run_name, storage) if losses is None else spikes_in_file(losses)
        answer.say(found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    for event in found["events"]:
        steps = f"step {event['start']}" if event["start"] == event["end"] else f"steps {event['start']}-{event['end']}"
        print(
            f"{event['kind']} ({event['severity']}) at {steps}: peak {event['peak_loss']:.4g} at {event['peak_step']}"
        )
        if event["shared_sample_ids"]:
            print(f"  due to data: other epochs have a spike with {_named(event['shared_sample_ids'])}")
    print(f"{len(found['flagged']):,} spikes, {len(found['events']):,} events")


def _named(sample_ids: tuple[int, ...]) -> str:
    more = len(sample_ids) - MOST_NAMED
    named = ", ".join(str(sample) for sample in sample_ids[:MOST_NAMED])
    return f"samples {named}" + (f" and {more} more" if more > 0 else "")
