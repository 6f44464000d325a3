"""Batching beside other packages' on the same lengths: `make peers`.

Each peer plans two epochs of the reference law for 8 ranks and 32,768 tokens, in its own public way, and is measured as
we are (`batching_worth.py`). What fills no step is counted as dropped, as the peers drop or wait for it. A peer that is
slow gets a tenth of the lengths, and its time is multiplied: the table says on how many samples. One that cannot be
imported is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from batching_samplers import PEERS, MicroBatches, Peer, Planned
from batching_specs import RANKS, reference_spec
from batching_worth import worth
from measure import cpu_seconds
from reference_lengths import NUM_SAMPLES, reference_lengths

from dflash_pipeline.contracts.batching import Layout
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.manifest import build_epoch_manifest

COLUMNS = (
    "samples",
    "cpu_s",
    "cpu_s_all",
    "padding",
    "fill",
    "overall",
    "w1t",
    "random_w1t",
    "pairs",
    "above_cap",
    "dropped",
)


def main() -> None:
    asked = _arguments()
    lengths = reference_lengths(asked.samples)
    rows = [_ours("window", lengths), _ours("varlen", lengths), *(_row(peer, lengths) for peer in PEERS)]
    print(json.dumps(rows, indent=1) if asked.json else _text(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES, help="how many to draw from the reference law")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _ours(strategy: Any, lengths: np.ndarray) -> dict[str, Any]:
    samples, spec = _samples(lengths), reference_spec(strategy)
    first, second = (build_epoch_manifest(samples, spec, epoch=epoch) for epoch in (0, 1))
    seconds = min(cpu_seconds(lambda: build_epoch_manifest(samples, spec, epoch=0)) for _ in range(5))
    return _figures(f"ours, {strategy}", lengths.size, lengths.size, seconds, "") | asdict(
        worth(first, second, samples)
    )


def _row(peer: Peer, lengths: np.ndarray) -> dict[str, Any]:
    given = lengths[: peer.samples]
    try:
        planned = peer.plan(given)
    except ImportError as missing:
        return {"name": _with_version(peer.name), "note": f"not measured: {missing}"}
    samples = _samples(given)
    first, second = (_manifest(number, planned, samples) for number in (0, 1))
    facts = _figures(_with_version(peer.name), given.size, lengths.size, planned.seconds, planned.note)
    return facts | asdict(worth(first, second, samples))


def _figures(name: str, samples: int, of: int, seconds: float, note: str) -> dict[str, Any]:
    """`cpu_s` as measured; `cpu_s_all` for all lengths, in proportion."""
    return {"name": name, "note": note, "samples": samples, "cpu_s": seconds, "cpu_s_all": seconds * of / samples}


def _manifest(number: int, planned: Planned, samples: SampleLengths) -> EpochManifest:
    """A peer's micro-batches as an epoch of ours; its budget is whatever it used."""
    batches: MicroBatches = planned.epochs[number]
    steps = len(batches) // RANKS
    batches = batches[: steps * RANKS]
    ids, sizes = np.concatenate(batches).astype(np.int64), np.array([batch.size for batch in batches])
    starts = np.cumsum(sizes) - sizes
    tokens = np.add.reduceat(samples.num_tokens[ids], starts)
    longest = np.maximum.reduceat(samples.num_tokens[ids], starts)
    padded, rows = _shape(planned.layout, longest, tokens, sizes)
    shape = (steps, RANKS)
    return EpochManifest(
        epoch=number,
        num_corpus_samples=samples.num_tokens.size,
        slots_per_step=RANKS,
        token_budget=int((padded * rows).max()),
        layout=planned.layout,
        sample_ids=ids,
        offsets=np.concatenate(([0], np.cumsum(sizes))),
        padded_length=padded.reshape(shape),
        num_tokens=tokens.reshape(shape),
        supervised_tokens=tokens.reshape(shape),
        cost=tokens.reshape(shape).astype(np.float64),
        filler=np.zeros(shape, dtype=np.bool_),
        dropped=np.setdiff1d(np.arange(samples.num_tokens.size), ids),
    )


def _shape(layout: Layout, longest: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Padded length and number of rows of each micro-batch."""
    return (tokens, np.ones_like(sizes)) if layout == "documents" else (longest, sizes)


def _samples(lengths: np.ndarray) -> SampleLengths:
    return SampleLengths(snapshot="peers", num_tokens=lengths, num_supervised=lengths)


def _with_version(name: str) -> str:
    package, _, rest = name.partition(" ")
    try:
        return f"{package} {version(package)} {rest}"
    except PackageNotFoundError:
        return name


def _text(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        figures = " · ".join(f"{name} {_cell(row[name])}" for name in COLUMNS if name in row)
        lines.append("\n   ".join(part for part in (row["name"], figures, row["note"]) if part))
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"


if __name__ == "__main__":
    main()
