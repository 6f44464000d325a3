"""`dflash report`: one page on one's own data, from rows and a tokenizer alone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.conversation import RejectedRow
from dflash_pipeline.contracts.corpus import CorpusSnapshot, LengthStatistics
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.stages.batching import sample_lengths
from dflash_pipeline.stages.forecast_files import ForecastRequest, forecast_facts
from dflash_pipeline.stages.ingest_files import IngestRequest, ingest_files
from dflash_pipeline.stages.pictures import efficiency_against_diversity, length_histogram
from dflash_pipeline.store.files import write_atomic
from dflash_pipeline.store.layout import open_storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.store.warehouse import Warehouse

REJECTS_SHOWN = 50
SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}.chosen{font-weight:600;background:#fff4ec}
code{white-space:pre-wrap;word-break:break-word}.wide td{text-align:left;vertical-align:top}"""


def make_report(
    ingest: IngestRequest, batching: ForecastRequest, storage_dir: Path, out: Path, *, known: dict[str, Any]
) -> dict[str, Any]:
    """Ingest the sources, forecast every strategy on them, and write the page; its facts."""
    ingested = ingest_files(ingest, storage_dir, known=known)
    storage = open_storage(storage_dir)
    snapshot = load_record(storage.snapshots / ingested["snapshot"] / "snapshot.json", CorpusSnapshot)
    samples = sample_lengths(storage, snapshot)
    statistics = length_statistics(samples)
    forecast = forecast_facts(samples, batching)
    rejected = Warehouse(storage.warehouse).rejected_rows()
    facts = {
        **ingested,
        "lengths": {f"p{round(share * 100)}": statistics.quantile(share) for share in SHARES}
        | {"mean": statistics.num_tokens / statistics.num_samples, "longest": statistics.max_length},
        "boundaries": forecast["boundaries"],
        "strategies": forecast["strategies"],
        "page": str(out),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, _page(facts, statistics, rejected[:REJECTS_SHOWN]).encode())
    return facts


def _page(facts: dict[str, Any], statistics: LengthStatistics, rejected: Sequence[RejectedRow]) -> str:
    rows = [StrategyForecast(**row) for row in facts["strategies"]]
    chosen = next(row for row in rows if row.chosen)
    shuffled = next(row for row in rows if row.name == "shuffle")
    parts = [
        "<h1>What this data means for training</h1>",
        f"<p>{facts['accepted']:,} rows accepted, {facts['rejected']:,} rejected, {facts['exact_duplicates']:,} exact "
        f"duplicates; {facts['num_tokens']:,} tokens, {facts['num_supervised_tokens']:,} of them supervised.</p>",
        f"<p>Of what a full shuffle computes, {1 - shuffled.padding_efficiency:.0%} would be padding; with "
        f"<b>{html.escape(chosen.name)}</b> it is {1 - chosen.padding_efficiency:.1%}, and training runs "
        f"{chosen.relative_throughput / shuffled.relative_throughput:.1f} times as fast as with the shuffle, by the "
        f"cost model.{_left_out(chosen, facts['num_samples'])}</p>",
        "<h2>Lengths</h2>",
        _image(length_histogram(statistics, facts["boundaries"][1:]), "samples by length, with bucket boundaries"),
        _table([list(facts["lengths"])], [[f"{value:,.0f}" for value in facts["lengths"].values()]]),
        f"<p>Boundaries of the best {len(facts['boundaries']) - 1} buckets: {facts['boundaries']}</p>",
        "<h2>Strategies</h2>",
        _image(efficiency_against_diversity(rows), "speed of each strategy against how often its pairs meet again"),
        _strategies(rows),
        "<p>Speed is against sorted batches, by the cost model. Distance: how far a step's lengths are from the "
        "corpus', in tokens. Repetition: of the pairs that share a micro-batch, the share that does so again.</p>",
        "<h2>Rows left out</h2>",
        _rejects(facts["by_reason"], rejected),
    ]
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Report on data</title><style>{_STYLE}</style>"
    return head + "".join(parts) + "</html>"


def _left_out(chosen: StrategyForecast, num_samples: int) -> str:
    if not chosen.num_dropped:
        return ""
    return f" <b>{chosen.num_dropped:,} of {num_samples:,} samples have no place within the token budget.</b>"


def _rejects(by_reason: Mapping[str, int], rejected: Sequence[RejectedRow]) -> str:
    if not rejected:
        return "<p>None.</p>"
    return _table([["reason", "rows"]], [[reason, f"{n:,}"] for reason, n in by_reason.items()]) + _table(
        [["file", "line", "reason", "begins with"]],
        [[row.file, str(row.line), row.reason, row.excerpt] for row in rejected],
        style="wide",
    )


def _strategies(rows: Sequence[StrategyForecast]) -> str:
    head = ["strategy", "steps", "padding", "overall", "distance", "repetition", "shapes", "speed", "hours an epoch"]
    body = "".join(f"<tr{' class=chosen' if row.chosen else ''}>{_cells(_strategy(row))}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{body}</table>"


def _strategy(row: StrategyForecast) -> list[str]:
    return [
        row.name,
        f"{row.num_steps:,}",
        f"{row.padding_efficiency:.4f}",
        f"{row.overall_efficiency:.4f}",
        f"{row.length_distance:.1f}",
        f"{row.pair_repetition:.2g}",
        f"{row.num_shapes:,}",
        f"{row.relative_throughput:.3f}",
        "unknown" if row.hours is None else f"{row.hours:.2f}",
    ]


def _table(head: Iterable[Sequence[str]], rows: Sequence[Sequence[str]], *, style: str = "") -> str:
    titles = "".join(f"<tr>{''.join(f'<th>{html.escape(name)}</th>' for name in line)}</tr>" for line in head)
    return f"<table class='{style}'>{titles}{''.join(f'<tr>{_cells(row)}</tr>' for row in rows)}</table>"


def _cells(values: Iterable[str]) -> str:
    # Rows are foreign text: nothing of them may become markup.
    return "".join(f"<td><code>{html.escape(value)}</code></td>" for value in values)


def _image(address: str, says: str) -> str:
    return f"<img src='{address}' alt='{html.escape(says)}'>"
