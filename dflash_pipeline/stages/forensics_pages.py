"""The samples of a loss event for a person to read: as a page, and as a short text for Dagster."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from dflash_pipeline.stages.forensics import EventForensics, Meeting, SuspectSample

MARKDOWN_EVENTS, MARKDOWN_SAMPLES, MARKDOWN_CHARACTERS = 5, 6, 240
MOST_NEIGHBOURS = 12
_STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:left}
pre{white-space:pre-wrap;word-break:break-word;background:#f6f6f6;padding:.6rem}.fault{border-left:4px solid #e45756;
padding-left:.8rem}"""


def page_name(found: EventForensics) -> str:
    """File name of an event's page: the same event, the same name."""
    return f"event-{found.event.start:07d}.html"


def event_page(run: str, found: EventForensics) -> str:
    """One event as HTML that holds everything itself. Samples are foreign text: nothing of them becomes markup."""
    event = found.event
    parts = [
        f"<h1>{html.escape(title(found))}</h1>",
        f"<p>Run {html.escape(run)}. Kind: {event.kind}, severity: {event.severity}. {html.escape(cause(found))}</p>",
        "<h2>Steps</h2>",
        _table(
            ["global step", "epoch", "step", "bucket", "loss", "usual", "told by", "slots"],
            (
                [
                    str(step.told.global_step),
                    str(step.told.epoch),
                    str(step.told.step),
                    str(step.told.bucket),
                    number(step.told.loss),
                    number(step.told.expected_loss),
                    step.told.rule,
                    "; ".join(
                        f"{slot.slot} ({slot.padded_length} tokens): {_ids(slot.sample_ids)}" for slot in step.slots
                    )
                    or "not known",
                ]
                for step in found.steps
            ),
        ),
        f"<h2>Samples</h2><p>{html.escape(_losses_note(found))}</p>",
        *(_sample(sample) for sample in found.samples),
    ]
    if found.num_left_out:
        parts.append(f"<p>{found.num_left_out:,} more samples are not shown.</p>")
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title(found))}</title>"
    return f"{head}<style>{_STYLE}</style>{''.join(parts)}</html>"


def events_markdown(run: str, events: Sequence[EventForensics]) -> str:
    """The events of a run in a few kilobytes of Markdown, those due to data first."""
    if not events:
        return "No loss event."
    ordered = sorted(events, key=lambda found: found.event.cause != "data")
    parts = [line for found in ordered[:MARKDOWN_EVENTS] for line in _event_lines(found)]
    if len(ordered) > MARKDOWN_EVENTS:
        parts.append(f"{len(ordered) - MARKDOWN_EVENTS} more events: `dflash spikes {run} --full`")
    return "\n\n".join(parts)


def title(found: EventForensics) -> str:
    event = found.event
    steps = f"step {event.start}" if event.start == event.end else f"steps {event.start} to {event.end}"
    return f"{event.kind} at {steps}: loss {number(event.peak_loss)} at {event.peak_step}"


def cause(found: EventForensics) -> str:
    """What the event is due to, as far as that is known."""
    if found.event.cause is None:
        return "No cause is known: no other epoch has an event on these samples."
    return f"Due to data: other epochs have an event with {_ids(found.event.shared_sample_ids)}, too."


def place(sample: SuspectSample) -> str:
    """Where a sample comes from."""
    if sample.conversation_id is None:
        return "its snapshot is gone"
    return sample.conversation_id + ("" if sample.file is None else f", {sample.file} line {sample.line}")


def meeting_sentence(meeting: Meeting) -> str:
    loss = "not run" if meeting.loss is None else f"loss {number(meeting.loss)}"
    others = f"with {_ids(meeting.neighbours)}" if meeting.neighbours else "alone"
    return f"epoch {meeting.epoch} step {meeting.step} slot {meeting.slot} ({loss}) {others}"


def _event_lines(found: EventForensics) -> Iterable[str]:
    yield f"**{title(found)}** ({found.event.severity}). {cause(found)}"
    for sample in found.samples[:MARKDOWN_SAMPLES]:
        fault = ", at fault" if sample.at_fault else ""
        text = (sample.text or "")[:MARKDOWN_CHARACTERS]
        yield f"- sample {sample.sample_id}{fault}: {_code(place(sample))} {_code(text)}"
    more = len(found.samples) + found.num_left_out - MARKDOWN_SAMPLES
    if more > 0:
        yield f"{more:,} more samples"


def _sample(sample: SuspectSample) -> str:
    facts = [f"{sample.num_tokens:,} tokens, {sample.num_supervised:,} supervised"] if sample.num_tokens else []
    facts += [f"loss {number(sample.loss)}"] if sample.loss is not None else []
    meetings = "".join(f"<li>{html.escape(meeting_sentence(meeting))}</li>" for meeting in sample.meetings)
    text = "" if sample.text is None else f"<pre>{html.escape(sample.text)}</pre>"
    supervised = "" if sample.supervised_text is None else f"<pre>{html.escape(sample.supervised_text)}</pre>"
    return (
        f"<section class='{'fault' if sample.at_fault else ''}'><h3>Sample {sample.sample_id}"
        f"{' (at fault)' if sample.at_fault else ''}</h3><p>{html.escape(place(sample))}. "
        f"{html.escape('; '.join(facts))}</p>{text}<details><summary>What carries the loss</summary>{supervised}"
        f"</details><details><summary>In every epoch</summary><ul>{meetings}</ul></details></section>"
    )


def _losses_note(found: EventForensics) -> str:
    if found.losses_of is None:
        return "Losses of single samples are not recorded: `dflash spikes RUN --full --sample-losses` computes them."
    return f"Losses of single samples: by the weights of {found.losses_of}, with the blocks of the step."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"


def _ids(sample_ids: Sequence[int]) -> str:
    more = len(sample_ids) - MOST_NEIGHBOURS
    named = ", ".join(str(sample) for sample in sample_ids[:MOST_NEIGHBOURS])
    return f"samples {named}" + (f" and {more} more" if more > 0 else "")


def number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _code(text: str) -> str:
    """Foreign text as code on one line. A mark that would end it becomes an apostrophe."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`" if text.strip() else ""
