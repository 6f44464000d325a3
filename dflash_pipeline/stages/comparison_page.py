"""Runs side by side as one page that holds everything itself."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.stages import comparison_pictures as pictures
from dflash_pipeline.stages.comparison import ComparedRun, Comparison, acceptance_difference
from dflash_pipeline.stages.forensics_pages import number
from dflash_pipeline.store.files import write_atomic

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:left;
vertical-align:top;word-break:break-word}img{max-width:100%}"""
_BEGINS = "<!doctype html>"


def write_page(comparison: Comparison, out: Path) -> None:
    """Writes the page, over an earlier page at most: any other file of that name is refused."""
    if not out.parent.is_dir() or out.is_dir():
        raise Refused("a page cannot be written here", where=str(out), fix="name a file in a folder that exists")
    if out.exists() and not out.read_bytes()[: len(_BEGINS)] == _BEGINS.encode():
        raise Refused("a file of that name is there, and is no page", where=str(out), fix="choose another name")
    write_atomic(out, comparison_page(comparison).encode())


def comparison_page(comparison: Comparison) -> str:
    """What changed, and did it help: tables first, then curves against cost, hours and steps."""
    runs = comparison.runs
    names = [run.name for run in runs]
    parts = [
        f"<h1>{html.escape(' against '.join(names))}</h1>",
        "<h2>What differs</h2>",
        _table(["setting", *names], ([name, *map(_told, of.values())] for name, of in comparison.differences.items()))
        if comparison.differences
        else "<p>No setting differs.</p>",
        "<h2>What came of it</h2>",
        _table(["", *names], summary_rows(runs)),
        *(f"<p>{html.escape(sentence)}</p>" for sentence in acceptance_sentences(runs)),
        "<h2>Loss</h2>",
        *(_image(pictures.losses(runs, over), f"loss over {over}") for over in ("cost", "hours", "steps")),
        "<h2>Acceptance</h2>",
        *(_image(pictures.acceptances(runs, over), f"acceptance over {over}") for over in ("cost", "tokens")),
        "<h2>Epochs</h2>",
        _image(pictures.epochs(runs), "speed and padding efficiency of every epoch"),
        "<h2>Alarms and loss events</h2>",
        _table(["run", "step", "what", "it says"], troubles) if (troubles := list(_troubles(runs))) else "<p>None.</p>",
    ]
    head = f"{_BEGINS}<html lang='en'><meta charset='utf-8'><title>Runs compared</title><style>{_STYLE}</style>"
    return head + "".join(parts) + "</html>"


def summary_rows(runs: Sequence[ComparedRun]) -> list[list[str]]:
    """One row a figure, one cell a run, after the row's name."""
    rows: list[list[str]] = [
        ["status", *(run.status for run in runs)],
        ["steps", *(f"{run.curves.steps[-1]:,.0f}" for run in runs)],
        ["hours of steps", *(number(float(run.curves.hours[-1])) for run in runs)],
        ["useful tokens", *(f"{run.curves.tokens[-1]:,.0f}" for run in runs)],
        ["useful tokens a second", *(f"{run.tokens_per_second:,.0f}" for run in runs)],
        ["loss, smoothed, at the end", *(number(float(run.curves.loss[-1])) for run in runs)],
        ["expected acceptance at the end", *(number(float(run.curves.expected_acceptance[-1])) for run in runs)],
        ["acceptance length", *map(_acceptance, runs)],
        ["loss events", *(f"{len(run.events):,}" for run in runs)],
        ["alarms", *(f"{len(run.alarms):,}" for run in runs)],
        ["what limits throughput", *("not known" if r.verdict is None else r.verdict.sentence for r in runs)],
    ]
    for epoch in sorted({epoch.epoch for run in runs for epoch in run.epochs}):
        found = [next((e for e in run.epochs if e.epoch == epoch), None) for run in runs]
        cells = [
            ("none" if run.status == "finished" else "not ended")
            if e is None
            else f"{e.tokens_per_second:,.0f} tokens/s, padding efficiency {e.padding_efficiency:.3f}, "
            f"mean loss {number(e.mean_loss)}, {e.seconds:,.0f} s"
            for run, e in zip(runs, found, strict=True)
        ]
        rows.append([f"epoch {epoch}", *cells])
    return rows


def acceptance_sentences(runs: Sequence[ComparedRun]) -> Iterable[str]:
    """Each run's acceptance against the first one's, where both were measured on the same prompts."""
    first, *others = runs
    for other in others:
        found = acceptance_difference(first, other)
        if found is not None:
            low, high = found["interval"]
            certain = "" if low > 0 or high < 0 else ": no certain difference"
            yield (
                f"Acceptance length of {other.name} less that of {first.name}, prompt by prompt: {found['mean']:+.3f} "
                f"(95 %: {low:+.3f} to {high:+.3f}){certain}."
            )


def _acceptance(run: ComparedRun) -> str:
    if run.acceptance is None:
        return "not measured"
    low, high = run.acceptance.interval
    return f"{run.acceptance.mean:.3f} ({low:.3f} to {high:.3f}, {run.acceptance.num_prompts} prompts)"


def _troubles(runs: Sequence[ComparedRun]) -> Iterable[list[str]]:
    for run in runs:
        for event in run.events:
            says = f"peak {number(event.peak_loss)} at {event.peak_step}"
            if event.cause is not None:
                says += f"; due to data: samples {', '.join(map(str, event.shared_sample_ids[:12]))}"
            yield [run.name, f"{event.start}", f"{event.kind}, {event.severity}", says]
        for alarm in run.alarms:
            yield [run.name, f"{alarm.global_step}", f"alarm: {alarm.cause}", alarm.message]


def _told(value: str | None) -> str:
    return "not told" if value is None else value


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"


def _image(address: str, says: str) -> str:
    return f"<img src='{address}' alt='{html.escape(says)}'>"
