"""What each strategy costs and gives, against the goals: `python bench/batching.py [--lengths FILE] [--json]`.

Without a file it takes the reference law: 902,000 lengths. 8 ranks, 32,768 tokens a micro-batch, attention as dear as
the rest at 24,576 tokens. Definitions of the figures: docs/batching.md. `cpu_ms` is CPU time of one epoch planned in
this process after warm-up. Another machine, or a busy one, changes milliseconds; ratios hardly.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import batching_costs as costs
from batching_costs import TIMES, Corpus
from batching_goals import Goal, goals
from batching_specs import TOKEN_BUDGET, reference_spec
from batching_worth import Worth, worth
from measure import cpu_seconds
from reference_lengths import NUM_SAMPLES, SEED

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import LengthStatistics, SampleLengths
from dflash_pipeline.planning.boundaries import optimise_boundaries
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest

BUCKETS = 6


def main() -> None:
    asked = _arguments()
    corpus = Corpus(lengths=asked.lengths, num_samples=asked.samples, seed=asked.seed)
    samples = corpus.samples()
    statistics = length_statistics(samples)
    specs = dict(_specs(statistics))
    worths = {name: _worth(samples, spec) for name, spec in specs.items()}
    seconds = {name: _cpu_ms(samples, spec) for name, spec in specs.items()}
    planning = costs.planning_costs(corpus, samples)
    boundaries = costs.boundary_costs(statistics)
    disk = {name: _disk(samples, reference_spec(name)) for name in ("window", "varlen")}
    held = goals(worths, planning, boundaries, disk)
    found = {
        "corpus": {"num_samples": statistics.num_samples, "num_tokens": statistics.num_tokens},
        "strategies": [{"strategy": name} | asdict(worths[name]) | {"cpu_ms": seconds[name]} for name in specs],
        "planning": [asdict(cost) for cost in planning],
        "boundaries": [asdict(cost) for cost in boundaries],
        "disk": [{"strategy": name} | times for name, times in disk.items()],
        "compilation": [costs.compilation_seconds()],
        "goals": [_line(goal) for goal in held],
    }
    print(json.dumps(found, indent=1) if asked.json else _text(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help=".npy of whole numbers, or .parquet with a column `length`")
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES, help="how many to draw from the reference law")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _specs(statistics: LengthStatistics) -> Iterator[tuple[str, BatchingSpec]]:
    """Every strategy, by its name and the micro-batches per rank."""
    to_boundary = optimise_boundaries(statistics, num_buckets=BUCKETS)
    to_maximum = optimise_boundaries(statistics, num_buckets=BUCKETS, objective="batch-max", token_budget=TOKEN_BUDGET)
    for a in (1, 2):
        yield f"sorted, {a}", reference_spec("sorted", micro_batches_per_rank=a)
        yield f"shuffle, {a}", reference_spec("shuffle", micro_batches_per_rank=a)
        yield f"bucket, {a}", reference_spec("bucket", micro_batches_per_rank=a, boundaries=to_boundary)
        yield (
            f"bucket, static, {a}",
            reference_spec("bucket", micro_batches_per_rank=a, boundaries=to_boundary, padding="boundary"),
        )
        yield (
            f"bucket, expected maximum, {a}",
            reference_spec("bucket", micro_batches_per_rank=a, boundaries=to_maximum),
        )
        yield f"varlen, {a}", reference_spec("varlen", micro_batches_per_rank=a)
    for a in (1, 2, 8):
        yield f"window, {a}", reference_spec("window", micro_batches_per_rank=a)


def _worth(samples: SampleLengths, spec: BatchingSpec) -> Worth:
    first, second = (build_epoch_manifest(samples, spec, epoch=epoch) for epoch in (0, 1))
    return worth(first, second, samples)


def _cpu_ms(samples: SampleLengths, spec: BatchingSpec) -> float:
    return 1e3 * min(cpu_seconds(lambda: build_epoch_manifest(samples, spec, epoch=0)) for _ in range(TIMES))


def _disk(samples: SampleLengths, spec: BatchingSpec) -> dict[str, float]:
    six = costs.six_epochs_seconds(samples, spec)
    return costs.manifest_ms(samples, spec) | {"six": six["clock"], "six_cpu": six["cpu"]}


def _line(goal: Goal) -> dict[str, Any]:
    sign = "≥" if goal.at_least else "≤"
    return {
        "goal": goal.name,
        "figure": goal.figure,
        "limit": f"{sign} {goal.limit:g}",
        "met": "met" if goal.met else "NOT MET",
    }


def _text(found: dict[str, Any]) -> str:
    parts = [" ".join(f"{name}: {value:,}" for name, value in found["corpus"].items())]
    parts += [f"{name}\n{_table(rows)}" for name, rows in found.items() if name != "corpus"]
    return "\n\n".join(parts)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    names = list(rows[0])
    cells = [names] + [[_cell(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    # Names to the left, numbers to the right.
    return "\n".join(
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3e}" if 0 < abs(value) < 1e-3 else f"{value:,.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
