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
TEXT_CHARACTERS = 300
"""Of a sample's text, on a terminal."""


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
    full: Annotated[
        bool, typer.Option("--full", help="Of a run: the samples of each event, their texts, sources and other epochs.")
    ] = False,
    sample_losses: Annotated[
        bool, typer.Option("--sample-losses", help="With --full: compute each sample's own loss, on the CPU.")
    ] = False,
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the loss spikes of a run, or of a series in a file.

    Slow rises and level shifts are among the events, not among the flagged steps. A run's alarms are shown, too, and
    what limits its throughput.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.spikes import spikes_in_file, spikes_of_run

        if bool(run_name) == (losses is not None):
            raise Refused("needs a run or a file", where="dflash spikes", fix="give either RUN or --losses FILE")
        if (full and losses is not None) or (sample_losses and not full):
            raise Refused(
                "--full looks into the samples of a run, --sample-losses goes with it",
                where="dflash spikes",
                fix="write dflash spikes RUN --full",
            )
        if losses is not None:
            found = spikes_in_file(losses)
        else:
            found = spikes_of_run(run_name, storage, full=full, sample_losses=sample_losses)
        answer.say(found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    looked_into = {one["event"]["start"]: one for one in found.get("forensics", ())}
    for event in found["events"]:
        steps = f"step {event['start']}" if event["start"] == event["end"] else f"steps {event['start']}-{event['end']}"
        print(
            f"{event['kind']} ({event['severity']}) at {steps}: peak {event['peak_loss']:.4g} at {event['peak_step']}"
        )
        if event["shared_sample_ids"]:
            print(f"  due to data: other epochs have a spike with {_named(event['shared_sample_ids'])}")
        if event["start"] in looked_into:
            _show_samples(looked_into[event["start"]])
    for alarm in found.get("alarms", ()):
        print(f"alarm, {alarm['cause']}, at step {alarm['global_step']}: {alarm['message']}")
    print(f"{len(found['flagged']):,} spikes, {len(found['events']):,} events")
    if found.get("verdict"):
        print(found["verdict"]["sentence"])


def _show_samples(found: dict[str, Any]) -> None:
    for step in found["steps"]:
        told = step["told"]
        print(
            f"  step {told['global_step']} (epoch {told['epoch']} step {told['step']}, bucket {told['bucket']}): loss "
            f"{told['loss']:.4g}, usual {told['expected_loss']:.4g}"
        )
        for slot in step["slots"]:
            print(f"    slot {slot['slot']}, {slot['padded_length']} tokens long: {_named(slot['sample_ids'])}")
    for sample in found["samples"]:
        fault = " (at fault)" if sample["at_fault"] else ""
        loss = "" if sample["loss"] is None else f", loss {sample['loss']:.4g} by {found['losses_of']}"
        print(f"  sample {sample['sample_id']}{fault}{loss}: {_source(sample)}")
        if sample["text"]:
            # Foreign text: what would move a terminal's cursor is not passed on.
            text = "".join(c if c.isprintable() else " " for c in " ".join(sample["text"].split()))
            print(f"    {text[:TEXT_CHARACTERS]}{' …' if len(text) > TEXT_CHARACTERS else ''}")
        for meeting in sample["meetings"]:
            went = "not run" if meeting["loss"] is None else f"loss {meeting['loss']:.4g}"
            with_whom = f"with {_named(meeting['neighbours'])}" if meeting["neighbours"] else "alone"
            print(f"    epoch {meeting['epoch']} step {meeting['step']}: {went}, {with_whom}")
    if found["num_left_out"]:
        print(f"  {found['num_left_out']:,} more samples")


def _source(sample: dict[str, Any]) -> str:
    if sample["conversation_id"] is None:
        return "its snapshot is gone"
    source = "" if sample["file"] is None else f", {sample['file']} line {sample['line']}"
    return f"{sample['conversation_id']}{source}"


def _named(sample_ids: tuple[int, ...]) -> str:
    more = len(sample_ids) - MOST_NAMED
    named = ", ".join(str(sample) for sample in sample_ids[:MOST_NAMED])
    return f"samples {named}" + (f" and {more} more" if more > 0 else "")
