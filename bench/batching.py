"""What each strategy costs and gives: `python bench/batching.py [--lengths FILE] [--json]`.

Without a file it takes the reference law. Definitions of the figures: docs/batching.md. Seconds are CPU time of this
process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
from reference_lengths import NUM_SAMPLES, SEED, reference_lengths

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel, Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.boundaries import optimise_boundaries, padding_efficiency
from dflash_pipeline.planning.diversity import length_distance, overall_efficiency, pair_repetition
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest

QUADRATIC = CostModel(quadratic_length=24_576.0)
"""Attention as dear as the rest at 24,576 tokens: a dense block of hidden size 4,096."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The figures of one strategy, over every step and sample of its first epoch."""

    strategy: str
    num_steps: int
    num_micro_batches: int
    padding_efficiency: float
    overall_linear: float
    """Needed / paid with stragglers, at linear cost."""
    overall_quadratic: float
    length_distance: float
    pair_repetition: float
    seconds: float
    """To make one epoch's manifest."""


def main() -> None:
    asked = _arguments()
    lengths = reference_lengths(asked.samples, seed=asked.seed) if asked.lengths is None else _read(asked.lengths)
    samples = SampleLengths(snapshot="bench", num_tokens=lengths, num_supervised=lengths)
    statistics = length_statistics(samples)
    began = time.process_time()
    boundaries = optimise_boundaries(statistics, num_buckets=asked.buckets)
    facts = {
        "num_samples": int(lengths.size),
        "num_tokens": statistics.num_tokens,
        "num_unique_lengths": len(statistics.lengths),
        "boundaries": list(boundaries),
        "boundaries_seconds": time.process_time() - began,
        "padded_to_boundary": padding_efficiency(statistics, boundaries),
    }
    rows = [_measure(samples, spec) for spec in _specs(asked, boundaries)]
    print(
        json.dumps(facts | {"strategies": [asdict(row) for row in rows]}, indent=1)
        if asked.json
        else _table(facts, rows)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help=".npy of whole numbers, or .parquet with a column `length`")
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES, help="how many to draw from the reference law")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--buckets", type=int, default=6)
    parser.add_argument("--token-budget", type=int, default=32_768)
    parser.add_argument("--slots-per-step", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _read(path: Path) -> np.ndarray:
    lengths = pq.read_table(path)["length"].to_numpy() if path.suffix == ".parquet" else np.load(path)
    return lengths.astype(np.int64)


def _specs(asked: argparse.Namespace, boundaries: tuple[int, ...]) -> Iterator[BatchingSpec]:
    for strategy in get_args(Strategy):
        for padding in ("batch-max", "boundary") if strategy == "bucket" else ("batch-max",):
            yield BatchingSpec(
                strategy=strategy,
                padding=padding,
                token_budget=asked.token_budget,
                slots_per_step=asked.slots_per_step,
                boundaries=boundaries,
            )


def _measure(samples: SampleLengths, spec: BatchingSpec) -> Row:
    began = time.process_time()
    first = build_epoch_manifest(samples, spec, epoch=0)
    seconds = time.process_time() - began
    summary = first.summary()
    ranks = spec.slots_per_step
    return Row(
        strategy=spec.strategy if spec.padding == "batch-max" else f"{spec.strategy}, static",
        num_steps=summary.num_steps,
        num_micro_batches=summary.num_micro_batches,
        padding_efficiency=summary.padding_efficiency,
        overall_linear=overall_efficiency(first, samples, CostModel(), num_ranks=ranks),
        overall_quadratic=overall_efficiency(first, samples, QUADRATIC, num_ranks=ranks),
        length_distance=length_distance(first, samples),
        pair_repetition=pair_repetition(first, build_epoch_manifest(samples, spec, epoch=1)),
        seconds=seconds,
    )


def _table(facts: dict[str, object], rows: list[Row]) -> str:
    names = [field.name for field in fields(Row)]
    cells = [names] + [[_cell(getattr(row, name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    head = [f"{name}: {_cell(value)}" for name, value in facts.items()]
    return "\n".join(head + [""] + ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells])


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
